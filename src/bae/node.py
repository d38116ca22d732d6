"""`Node`: the class that users subclass. Its fields are context for the LLM, its class name is the
instruction, and the return type of its `__call__` declares where the run may go."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict

from bae.draft import start_draft
from bae.exceptions import NodeError
from bae.hints import rebuild, remember_frame
from bae.markers import Marker

if TYPE_CHECKING:
    from bae.language_model import LM, Shown


@dataclass(frozen=True, slots=True, eq=False)
class NodeConfig(Mapping[str, Any]):
    """bae's own settings of a node class, apart from Pydantic's `model_config`.

    `lm` pins an LM to the class: it fills nodes of this class and chooses the node after them, and
    a written body of the class gets it as `LM`. It may be a name that `bae.lm.resolve` knows, such
    as "local". Subclasses inherit it; parents and siblings do not see it.

    `instruction` is the instruction to an LM that fills a node of this class, in place of the class
    name. `description` tells an LM that chooses among several classes what this class is for. Both
    are words about this one class: subclasses do not inherit them.

    `context` and `context_limit` are those of `Graph`, for questions about this class alone: to
    fill a node of the class, and to choose the node after it. Subclasses inherit them.

    `show` names the fields whose secrets LMs see: `show=("address",)`. Other fields with
    `repr=False`, and `SecretStr`s, are masked in prompts. Only prompts change: journals, telemetry
    and the terminal still hide the values. Subclasses inherit it.

    `text` names the field with the text of the node in a thread: the message of the user, where a
    run starts at the node, and the reply, where a run ends at it. Without `text`, it is the only
    plain field of type `str`, otherwise the JSON of the node. Subclasses inherit it.

    A config is also a mapping of the settings that are set. bae accepts a dict with the same keys.
    """

    lm: LM | str | None = None
    instruction: str | None = None
    description: str | None = None
    context: Shown | None = None
    context_limit: int | None = None
    show: tuple[str, ...] | None = None
    text: str | None = None

    def __post_init__(self) -> None:
        check_context("NodeConfig", self.context, self.context_limit)
        show = cast("tuple[object, ...] | None", self.show)
        if show is not None and not (type(show) is tuple and show and all(map(_is_text, show))):
            raise TypeError(f'NodeConfig(show={show!r}): give a tuple of field names, ("token",)')
        for name in ("instruction", "description", "text"):
            text: object = getattr(self, name)
            if text is not None and not _is_text(text):
                raise TypeError(f"NodeConfig({name}={text!r}): give a text, or leave it out")

    def __getitem__(self, name: str) -> Any:
        return self._given_fields()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given_fields())

    def __len__(self) -> int:
        return len(self._given_fields())

    def _given_fields(self) -> dict[str, Any]:
        values = {field: getattr(self, field.name) for field in fields(self)}
        return {each.name: value for each, value in values.items() if value is not each.default}


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def check_context(owner: str, context: object, limit: object) -> None:
    """Raise an error for an invalid `context` or `context_limit`."""
    classes = cast("tuple[object, ...]", context if isinstance(context, tuple) else (context,))
    is_named = bool(classes) and all(isinstance(c, type) and issubclass(c, Node) for c in classes)
    if context not in (None, "previous", "start", "trace") and not is_named:
        raise TypeError(
            f'{owner}(context={context!r}): give "previous", "start", "trace", a node class, or a '
            "tuple of node classes"
        )
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ValueError(f"{owner}(context_limit={limit!r}): give a number of characters")


class NodeTypes(Set["type[Node]"], tuple["type[Node]", ...]):
    """Node classes in order: a tuple that is also a set. It equals a set of the same classes, and
    combining it with a set makes a set."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __contains__(self, key: object, /) -> bool: ...
    else:
        __contains__, __iter__, __len__ = tuple.__contains__, tuple.__iter__, tuple.__len__
        _from_iterable = set

        def __getattr__(self, name: str) -> Any:
            return getattr(frozenset(self), name)  # issubset, union, …

    def __hash__(self) -> int:
        return self._hash()


class Node(BaseModel):
    """One step of a graph. Subclass it, declare fields, and say where it leads:

    ```python
    class Draft(Node):
        topic: Annotated[str, Recall()]     # from the trace
        sources: Annotated[list[Source], Dep(search)]   # bae calls search
        text: str                           # the LM fills it

        async def __call__(self) -> Review | Publish: ...   # the LM chooses, then fills
    ```

    An empty body (`...`) leaves the choice to the LM. A written body is your code: it returns the
    next node, or None to end the run where the return type allows it. Build a node in your code
    from the fields you know. You may leave out the fields with a source: the run resolves them
    before it calls the node. A value that you pass is kept.
    """

    # A dependency may be anything, a client or a connection included. The proof checks that every
    # field for the LM has a JSON schema. The run, and an LM, know fields by name.
    model_config = ConfigDict(arbitrary_types_allowed=True, validate_by_name=True, defer_build=True)

    # Pydantic evaluates the annotations of this class again for every subclass, so at run time it
    # has none: `node_config` is set below.
    if TYPE_CHECKING:
        node_config: ClassVar[NodeConfig] = NodeConfig()
        __bae_sourced__: ClassVar[frozenset[str] | None]
    else:
        # The names of the fields that have a source; None while annotations are unresolved.
        __bae_sourced__ = frozenset()

    async def __call__(self, *args: Any, **kwargs: Any) -> Node | None:
        """Return the next node, or None to end the run. Override it in every node class."""
        raise NodeError(
            f"{type(self).__name__} has no __call__ of its own",
            node_type=type(self),
            code="bae-node-without-call",
            fix="write `async def __call__(self) -> NextNode: ...` in the class",
        )

    @classmethod
    def successors(cls) -> NodeTypes:
        """The node classes that may follow this class, in the order of its return type."""
        from bae.plan import plan_of

        return NodeTypes(plan_of(cls, strict=True).successors)

    @classmethod
    def is_terminal(cls) -> bool:
        """Whether a run may end at this node: None is, or is among, its return types."""
        from bae.plan import plan_of

        return plan_of(cls, strict=True).may_end

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        _refuse_sync_call(cls)
        _take_config(cls)
        if "." in cls.__qualname__:
            remember_frame(cls)
        cls.__bae_sourced__ = _sourced_fields(cls) if cls.__pydantic_complete__ else None

    if not TYPE_CHECKING:  # type checkers see the constructor that pydantic declares

        def __init__(self, /, **data: Any) -> None:
            __tracebackhide__ = True
            sourced = self.__bae_sourced__
            if sourced is None:
                sourced = finish_class(type(self))
            if sourced and not sourced <= data.keys() and start_draft(self, data, sourced):
                return
            self.__pydantic_validator__.validate_python(data, self_instance=self)

        # Tells pydantic that this constructor is like its own: pydantic need not call it when it
        # validates.
        __init__.__pydantic_base_init__ = True

        def __getattr__(self, name: str) -> Any:
            if name in (type(self).__bae_sourced__ or ()):
                raise AttributeError(
                    f"{type(self).__name__}.{name} has a source and is not resolved yet: it is "
                    "there when the run calls the node, or give it when you build the node"
                )
            return super().__getattr__(name)

        def __repr_args__(self) -> Any:
            if (type(self).__bae_sourced__ or frozenset()) <= self.__dict__.keys():
                return super().__repr_args__()
            # A computed field of a draft may need a field that is not resolved yet.
            fields = type(self).__pydantic_fields__
            shown = [(n, v) for n, v in self.__dict__.items() if n in fields and fields[n].repr]
            return [*shown, *(self.__pydantic_extra__ or {}).items()]


Node.node_config = NodeConfig()
Node.__class_vars__.add("node_config")

# Building the schema of this one class, which has no fields, would load half of pydantic at import.
# The schema of every subclass is built with its class, as usual.
Node.model_config["defer_build"] = False


def _sourced_fields(cls: type[Node]) -> frozenset[str]:
    """The names of the fields whose annotation carries a source marker."""
    return frozenset(
        [
            name
            for name, field in cls.__pydantic_fields__.items()
            if field.metadata
            and any(isinstance(each, Marker) and each.is_source for each in field.metadata)
        ]
    )


def finish_class(cls: type[Node]) -> frozenset[str]:
    """Resolve the annotations of a class; return the names of its fields with a source."""
    rebuild(cls)
    cls.__bae_sourced__ = _sourced_fields(cls)
    return cls.__bae_sourced__


def _take_config(cls: type[Node]) -> None:
    config = cast(object, cls.node_config)
    if isinstance(config, NodeConfig):
        return
    known = [field.name for field in fields(NodeConfig)]
    if not isinstance(config, dict) or not cast("dict[Any, Any]", config).keys() <= {*known}:
        raise NodeError(
            f"{cls.__name__}.node_config is {config!r}, and no NodeConfig",
            node_type=cls,
            code="bae-node-config",
            fix='write `node_config = NodeConfig(lm="…")`, which takes '
            f"{', '.join(known)}; model_config is for pydantic",
        )
    cls.node_config = NodeConfig(**cast("dict[str, Any]", config))


def _refuse_sync_call(cls: type[Node]) -> None:
    call: Any = cls.__call__
    if inspect.iscoroutinefunction(inspect.unwrap(call)):
        return
    raise NodeError(
        f"{cls.__name__}.__call__ is not a coroutine function",
        node_type=cls,
        code="bae-node-sync-call",
        fix="write `async def __call__(self) -> …`; a body that awaits nothing may be async too, "
        "and must not yield",
    )
