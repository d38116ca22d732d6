"""What is said below the result of `bae optimize`: what it was learnt from and what that took, why
it did not come to its end, what is kept, and what is in the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bae.cli.live.wording import cost, count
from bae.cli.printing import note

if TYPE_CHECKING:
    from bae.cli.improving.kept_calls import KeptCalls
    from bae.cli.improving.wanted import Learnt, Wanted


def tell_spent(wanted: Wanted, learnt: Learnt, kept: KeptCalls) -> None:
    """Say what it was learnt from, and what was spent."""
    if not learnt.examples:
        return
    said = [f"{count(learnt.examples, 'step')}, {learnt.held_out:,} of them held out"]
    if learnt.repeated:
        said.append(f"{learnt.repeated:,} not held out that ask what was asked before")
    if learnt.from_evals:
        said.append(f"{learnt.from_evals:,} from `bae eval` left out")
    if learnt.without:
        said.append(f"{learnt.without:,} left out with their runs")
    asked, used = kept.statistics, wanted.budget.usage
    earlier = asked.earlier.calls
    calls = count(asked.calls, "LM call")
    said.append(f"{calls} now, {asked.calls + earlier:,} in all" if earlier else calls)
    if again := asked.from_log + asked.joined - earlier:
        said.append(f"{again:,} asked again at no cost")
    in_all = " in all" if earlier else ""
    if used.tokens:
        said.append(f"{count(used.tokens, 'token')}{in_all}")
    if price := cost(used):
        said.append(price if used.cost is None else f"{price}{in_all}")
    note(" · ".join(said))


def tell_unfinished(learnt: Learnt, kept: KeptCalls, *, interrupted: bool) -> None:
    """Say why it is not done, and what to do: however quiet it is to be."""
    if learnt.out_of_budget:
        note(f"{learnt.out_of_budget}; {kept.goes_on()}, with more --budget")
    elif interrupted:
        note(f"interrupted; {kept.goes_on()}")
    for each in learnt.misfits:
        if each.stays:
            note(
                f"{each.file} still does not fit: delete it, or --optimized {each.file.parent} is "
                "refused"
            )


def tell_kept(wanted: Wanted, learnt: Learnt, kept: KeptCalls) -> None:
    """Say that calls are kept though all is done, and what for."""
    if learnt.done and kept.stays and (said := kept.kept()):
        how = "without --certain" if wanted.certain else "with --force"
        note(f"{said}: {how} the same command writes the rest, and asks nothing again")
