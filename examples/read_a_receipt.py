"""An image as input: the model sees the photo itself. A path after an @ gives bae a file.

    bae run examples/read_a_receipt.py --set photo=@examples/receipt.png

`python examples/read_a_receipt.py` is scripted, and asks no model.
"""

from pathlib import Path

from pydantic import Field

from bae import Graph, Image, Node
from bae.testing import ScriptedLM


class Receipt(Node):
    shop: str = Field(description="as printed at the top", max_length=60)
    total: float = Field(description="in its currency", ge=0)

    async def __call__(self) -> None: ...


class Photo(Node):
    photo: Image

    async def __call__(self) -> Receipt: ...


graph = Graph(start=Photo, end=Receipt)


def main() -> None:
    photo = Image.from_path(Path(__file__).with_name("receipt.png"))
    lm = ScriptedLM([{"shop": "Lamps & Co", "total": 39.9}])
    receipt = graph.run(Photo(photo=photo), lm=lm).result
    print(f"{photo.placeholder} {receipt.shop}: {receipt.total:.2f}")


if __name__ == "__main__":
    main()
