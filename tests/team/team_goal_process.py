"""A team at work on a small shop in JavaScript, made to be killed: `python team_goal_process.py
PROJECT DB LOG`. Started again, it continues. It notes what its LLM is asked, before it answers."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from bae.team.models import PlannedTask
from bae.team.store import Store
from team_parts import edits
from team_scripts import TeamScript, run_team

HEAD = 'const { it } = require("node:test");\nconst { equal } = require("node:assert/strict");\n'


def with_test(name: str, check: str) -> dict[str, str]:
    return {f"{name}.test.js": f'{HEAD}it("{name}", () => {check});\n'}


FILES = {"index.js": "// What the shop has.\n", **with_test("index", "equal(1, 1)")}
MONEY = {
    "money.js": "exports.cents = (text) => Math.round(Number(text) * 100);\n",
    **with_test("money", 'equal(require("./money.js").cents("1.10"), 110)'),
}
CART = {
    "cart.js": 'const { cents } = require("./money.js");\n'
    "exports.total = (prices) => prices.map(cents).reduce((a, b) => a + b, 0);\n",
    **with_test("cart", 'equal(require("./index.js").cart.total(["1.10", "2"]), 310)'),
}
TAX = {
    "tax.js": "exports.add = (cents) => Math.round(cents * 1.2);\n",
    **with_test("tax", 'equal(require("./index.js").tax.add(100), 120)'),
}
CHECKOUT = {
    "checkout.js": 'const { cart, tax } = require("./index.js");\n'
    "exports.pay = (prices) => tax.add(cart.total(prices));\n",
    **with_test("checkout", 'equal(require("./checkout.js").pay(["1"]), 120)'),
}
LINES = {name: f'exports.{name} = require("./{name}.js");\n' for name in ("cart", "tax")}
INDEX = {name: {"index.js": FILES["index.js"] + line} for name, line in LINES.items()}
BOTH = {"index.js": FILES["index.js"] + "".join(LINES.values())}
SHIPPING = {
    "shipping.js": "exports.price = () => 500;\n",
    **with_test("shipping", 'equal(require("./shipping.js").price(), 500)'),
}
ANSWER = "Shipping is 5.00, always."
END = {**FILES, **MONEY, **CART, **TAX, **CHECKOUT, **SHIPPING, **BOTH}
"""All files in the end, whatever was killed, and whichever of two tasks was merged first."""

WRONG = {**CART, "cart.js": "exports.total = () => 0;\n", **INDEX["cart"]}
SCRIPT = {
    "money": edits(MONEY),
    # The index is edited by both: the second one to be merged has to take in the first.
    "cart": [edits(WRONG), edits({**CART, **INDEX["cart"]}), edits({**CART, **BOTH})],
    "tax": [edits({**TAX, **INDEX["tax"]}), edits({**TAX, **BOTH})],
    "checkout": edits(CHECKOUT),
    "shipping": lambda prompt: edits(SHIPPING) if ANSWER in prompt else "QUESTION: Which price?",
}
PLAN = [
    PlannedTask(key="money", title="Read amounts", kind="backend"),
    PlannedTask(key="cart", title="Add up a cart", kind="frontend", depends_on=("money",)),
    PlannedTask(key="tax", title="Add tax", kind="frontend", depends_on=("money",)),
    PlannedTask(key="checkout", title="Pay", kind="backend", depends_on=("cart", "tax")),
    PlannedTask(key="shipping", title="Price of shipping", kind="backend"),
]


async def main(project_id: int, db: Path, log: Path) -> None:
    async def note(key: str, attempt: int) -> None:
        line = f"{key} {attempt}\n".encode()
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, line)  # all of it or nothing
        os.close(file)

    async with await Store.open(db) as store:
        project = await store.project(project_id)
        summary = await run_team(project, store, TeamScript(SCRIPT, note))
    print(summary.ended, flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])))
