import asyncio, os, sys, time, tempfile
os.environ["SHOP_LOG"]=tempfile.mktemp()
sys.path.insert(0,"tests")
from engine.shop import *
from engine.temporal_server import temporal_server
from bae.journal import SQLiteJournal
from bae.engine import Worker, TemporalEngine
async def main(addr):
    e=TemporalEngine(addr, heartbeat=3)
    async with SQLiteJournal(tempfile.mktemp(suffix=".db")) as j:
        t0=time.time()
        ids=[await orders.submit(Order(run=f"r{i}"), journal=j, run_id=f"r{i}", engine=e) for i in range(60)]
        print("submitted", time.time()-t0)
        w=Worker(orders, refunds, journal=j, engine=e, concurrency=20)
        t=asyncio.create_task(w.run())
        t0=time.time()
        rs=[await orders.result(i, journal=j, timeout=30) for i in ids]
        print(time.time()-t0, rs[0].result)
        rid=await refunds.submit(Refund(amount=5), journal=j, engine=e)
        while (await j.info(rid)).status!="waiting": await asyncio.sleep(.01)
        t0=time.time()
        await refunds.answer(rid,"approved",True,journal=j,engine=e)
        print(await refunds.result(rid, journal=j, timeout=5), time.time()-t0)
        t0=time.time()
        rid=await orders.submit(Order(run="late"), journal=j, engine=e, delay=1.5)
        await orders.result(rid, journal=j, timeout=5); print("delayed", time.time()-t0)
        print(await e.status())
        w.stop(); await t
t0=time.time()
with temporal_server() as s:
    print("server", time.time()-t0)
    asyncio.run(main(s.address))
