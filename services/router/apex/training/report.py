"""What a route model's choices would have brought on prompts that it did not learn from, as they were recorded."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.common.expert_action import Action
from services.common.expert_profiles import PROFILES
from services.router.apex.route_net import RouteNet, utility
from services.router.apex.training.examples import Floats, RouteExamples


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """Of one profile; speedups are geometric means over prompts, each action for its whole request."""

    profile: str
    speedup: float
    """By the model's choices."""
    wasted: float
    """Rejected drafts for each token of the answer."""
    best_fixed: str
    """The one action that is best by the profile's utility on the prompts it learnt from."""
    best_fixed_speedup: float
    best_fixed_wasted: float
    oracle_speedup: float
    """By each prompt's own best action, as it came out."""
    utility_gap_closed: float
    """Of the utility between the best fixed action and the oracle, the share that the model gains; below 0 it loses."""


@dataclass(frozen=True, slots=True)
class Report:
    """On the prompts it is reported on."""

    prompts: int
    speedup_error: float
    """Median of |predicted / observed - 1|, drafting actions only."""
    profiles: tuple[ProfileReport, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def evaluate(model: RouteNet, learnt: RouteExamples, judged: RouteExamples, features: Floats) -> Report:
    """``features``: of the prompts of ``judged``. Actions that were not recorded are never chosen."""
    outlook = model.outlook(features)
    drafting = judged.known[:, 1:]
    error = np.abs(outlook.speedup[:, 1:] / np.exp(judged.outcomes[:, 1:, 0]) - 1)[drafting]
    profiles = []
    for name, profile in PROFILES.items():
        price = profile.waste_price
        expected = np.where(judged.known, outlook.utility(price), -np.inf)
        fixed = _best_fixed(learnt, price)
        profiles.append(_profile_report(name, price, judged, expected.argmax(1), fixed, model.config.actions))
    return Report(len(judged), float(np.median(error)), tuple(profiles))


def _profile_report(
    name: str, price: float, judged: RouteExamples, chosen: NDArray[np.int64], fixed: int, actions: Sequence[Action]
) -> ProfileReport:
    observed = np.where(judged.known, utility(judged.outcomes[..., 0], judged.outcomes[..., 1], price), -np.inf)
    rows = np.arange(len(judged))
    # Where the fixed action was not recorded for a prompt, that prompt is answered plainly.
    always = np.where(judged.known[:, fixed], fixed, 0)
    oracle = observed.argmax(1)
    base, best = (float(observed[rows, columns].mean()) for columns in (always, oracle))
    gained = float(observed[rows, chosen].mean()) - base
    return ProfileReport(
        profile=name,
        speedup=_speedup(judged, chosen),
        wasted=float(judged.outcomes[rows, chosen, 1].mean()),
        best_fixed=f"{actions[fixed].expert.value}:{actions[fixed].depth}",
        best_fixed_speedup=_speedup(judged, always),
        best_fixed_wasted=float(judged.outcomes[rows, always, 1].mean()),
        oracle_speedup=_speedup(judged, oracle),
        utility_gap_closed=gained / (best - base) if best > base else 0.0,
    )


def _best_fixed(learnt: RouteExamples, price: float) -> int:
    values = utility(learnt.outcomes[..., 0], learnt.outcomes[..., 1], price)
    return int((np.where(learnt.known, values, 0.0).sum(0) / np.maximum(learnt.known.sum(0), 1)).argmax())


def _speedup(judged: RouteExamples, columns: NDArray[np.int64]) -> float:
    return float(np.exp(judged.outcomes[np.arange(len(judged)), columns, 0].mean()))
