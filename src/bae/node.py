"""`Node`: the base class of all steps of a graph. The class name of a node is the instruction to
the LLM, its fields are context, and the return type of its `__call__` names the possible next
nodes."""

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

    Subclasses inherit all settings except `instruction` and `description`. A config is also a
    mapping, with the settings that differ from their defaults. In place of a config, bae accepts a
    dict with the same keys.
    """

    lm: LM | str | None = None
    """The LM that is pinned to the class, or its name for `bae.lm.resolve`, such as "local". The
    LM fills nodes of this class and chooses the node after them. A written body of the class gets
    this LM as its parameter."""
    instruction: str | None = None
    """The instruction to an LM that fills a node of this class, in place of the class name."""
    description: str | None = None
    """The purpose of this class, for an LM that chooses among several classes."""
    context: Shown | None = None
    """The setting `context` of `Graph` for questions about this class alone: to fill a node of the
    class, and to choose the node after it."""
    context_limit: int | None = None
    """The setting `context_limit` of `Graph` for questions about this class alone."""
    show: tuple[str, ...] | None = None
    """The fields whose secrets LMs see: `show=("address",)`. In prompts, bae masks all other
    `SecretStr`s and fields with `repr=False`. Journals, telemetry and the terminal hide the values
    in any case."""
    text: str | None = None
    """The field with the text of the node in a thread. If a run starts at the node, the text is the
    message of the user. If a run ends at the node, the text is the reply. The default is the only
    plain `str` field. If no plain field is a `str`, the default is the only `str` field. Otherwise
    the text is the JSON of the node."""

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
        return self._collect_settings()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._collect_settings())

    def __len__(self) -> int:
        return len(self._collect_settings())

    def _collect_settings(self) -> dict[str, Any]:
        values = {setting: getattr(self, setting.name) for setting in fields(self)}
        return {
            field_.name: value for field_, value in values.items() if value is not field_.default
        }


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
    """Node classes in order: a tuple that is also a set. It is equal to a set of the same classes.
    Set operations with it return a set."""

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
    """One step of a graph. Write a subclass with fields and a `__call__`:

    ```python
    class Draft(Node):
        topic: Annotated[str, Recall()]     # from the trace
        sources: Annotated[list[Source], Dep(search)]   # bae calls search
        text: str                           # the LM fills it

        async def __call__(self) -> Review | Publish: ...   # the LM chooses, then fills
    ```

    The return type of `__call__` names the nodes that may come next. With an empty body (`...`),
    the LM chooses the next node and fills it. A written body is your code: it returns the next
    node. If the return type allows None, the body may return None to end the run.

    When your code builds a node, you may leave out fields with a source: the run resolves them
    before it calls the node. If you pass a value for such a field, the run does not resolve it.
    """

    # A dependency may be any object, such as a client or a connection. The proof checks that each
    # field for the LM has a JSON schema. Runs and LMs use the names of fields, not their aliases.
    model_config = ConfigDict(arbitrary_types_allowed=True, validate_by_name=True, defer_build=True)

    # Pydantic would evaluate annotations of this class again for every subclass. So there are none
    # at run time, and `node_config` is set below.
    if TYPE_CHECKING:
        node_config: ClassVar[NodeConfig] = NodeConfig()
        __bae_sourced__: ClassVar[frozenset[str] | None]
    else:
        # The names of the fields with a source. None while annotations are unresolved.
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
        """Return the node classes that may follow this class, in the order of its return type."""
        from bae.plan import plan_of

        return NodeTypes(plan_of(cls, strict=True).successors)

    @classmethod
    def is_terminal(cls) -> bool:
        """Whether a run may end at this node: its return type is None or contains None."""
        from bae.plan import plan_of

        return plan_of(cls, strict=True).may_end

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        _refuse_sync_call(cls)
        _convert_config(cls)
        if "." in cls.__qualname__:
            remember_frame(cls)
        cls.__bae_sourced__ = _find_sourced_fields(cls) if cls.__pydantic_complete__ else None

    if not TYPE_CHECKING:  # type checkers see the constructor that pydantic declares

        def __init__(self, /, **data: Any) -> None:
            __tracebackhide__ = True
            sourced = self.__bae_sourced__
            if sourced is None:
                sourced = finish_class(type(self))
            if sourced and not sourced <= data.keys() and start_draft(self, data, sourced):
                return
            self.__pydantic_validator__.validate_python(data, self_instance=self)

        # Tells pydantic that it need not call this constructor when it validates a node.
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
            # Some fields with a source are not resolved yet. Computed fields may need these fields,
            # so they are not shown.
            fields = type(self).__pydantic_fields__
            shown_fields = [
                (n, v) for n, v in self.__dict__.items() if n in fields and fields[n].repr
            ]
            return [*shown_fields, *(self.__pydantic_extra__ or {}).items()]


Node.node_config = NodeConfig()
Node.__class_vars__.add("node_config")

# This class has no fields and defers its schema: building it would load half of pydantic at import.
# Subclasses do not defer theirs.
Node.model_config["defer_build"] = False


def _find_sourced_fields(cls: type[Node]) -> frozenset[str]:
    """Return the names of the fields with a source."""
    return frozenset(
        [
            name
            for name, field in cls.__pydantic_fields__.items()
            if field.metadata
            and any(isinstance(marker, Marker) and marker.is_source for marker in field.metadata)
        ]
    )


def finish_class(cls: type[Node]) -> frozenset[str]:
    """Resolve the annotations of a class. Return the names of its fields with a source."""
    rebuild(cls)
    cls.__bae_sourced__ = _find_sourced_fields(cls)
    return cls.__bae_sourced__


def _convert_config(cls: type[Node]) -> None:
    config = cast(object, cls.node_config)
    if isinstance(config, NodeConfig):
        return
    names = [field.name for field in fields(NodeConfig)]
    if not isinstance(config, dict) or not cast("dict[Any, Any]", config).keys() <= {*names}:
        raise NodeError(
            f"{cls.__name__}.node_config is {config!r}, not a NodeConfig",
            node_type=cls,
            code="bae-node-config",
            fix='write `node_config = NodeConfig(lm="…")`, which takes '
            f"{', '.join(names)}; model_config is for pydantic",
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
