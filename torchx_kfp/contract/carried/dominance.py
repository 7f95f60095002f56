"""Compare trials with several objectives."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def unbeaten(costs: Sequence[Sequence[float]], /) -> list[int]:
    """Return the indices of the costs that no others beat: as low in every objective, and lower in one."""
    return [
        index
        for index, own in enumerate(costs)
        if not any(
            other != own and all(a <= b for a, b in zip(other, own))  # noqa: B905 (Python 3.8)
            for other in costs
        )
    ]
