import asyncio, os, sys, time, tempfile
os.environ["SHOP_LOG"]=tempfile.mktemp()
sys.path.insert(0,"tests")
from engine.shop import *
from bae.journal import SQLiteJournal
from bae.engine import Worker
async def main():
    async with SQLiteJournal(tempfile.mktemp(suffix=".db")) as j:
        ids=[await orders.submit(Order(run=f"r{i}"), journal=j, run_id=f"r{i}") for i in range(100)]
        w=Worker(orders, refunds, journal=j, concurrency=20)
        t=asyncio.create_task(w.run())
        t0=time.time()
        rs=[await orders.result(i, journal=j, timeout=30) for i in ids]
        print(time.time()-t0, rs[0].result)
        rid=await refunds.submit(Refund(amount=5), journal=j)
        await asyncio.sleep(2); 
        print((await j.info(rid)).status)
        await refunds.answer(rid,"approved",True,journal=j,go_on=False)
        print(await refunds.result(rid, journal=j, timeout=5))
        w.stop(); await t
        print((await orders.resume("r0",journal=j)).trace[:1])
        s=(await j.read("r0")).lines
        print([l.kind for l in s])
    print(open(os.environ["SHOP_LOG"]).read()[:200])
asyncio.run(main())
