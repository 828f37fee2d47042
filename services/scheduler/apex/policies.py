"""Which policy a replica's configuration asks for."""

import structlog

from services.common.errors import ConfigError
from services.common.expert import Expert
from services.scheduler.apex.averages_policy import AveragesPolicy
from services.scheduler.apex.chooser import Chooser
from services.scheduler.apex.depth_net import DepthNet, load_depth_net
from services.scheduler.apex.fixed_policy import FixedPolicy
from services.scheduler.apex.learned_policy import LearnedPolicy
from services.scheduler.apex.options import Pins
from services.scheduler.apex.policy import Policy
from services.scheduler.experts_config import ExpertsConfig

_log = structlog.get_logger(__name__)


def make_policy(config: ExpertsConfig) -> Policy:
    """A depth model that cannot be used is logged, and averages choose."""
    expert = None if config.expert == "auto" else Expert(config.expert)
    depth = None if config.depth == "auto" else config.depth
    if expert is Expert.PLAIN or depth == 0:
        return FixedPolicy(Expert.PLAIN, 0)
    if expert is not None and depth is not None:
        return FixedPolicy(expert, depth)
    neural = None if config.drafter is None else Expert(config.drafter.kind)
    chooser, pins = Chooser(config.profile, config.explore), Pins(expert, depth, config.depths)
    averages = AveragesPolicy(neural, chooser, pins)
    net = _depth_net(config)
    if net is None:
        return averages
    return LearnedPolicy(net, averages, chooser, neural, pins, config.depth_score)


def _depth_net(config: ExpertsConfig) -> DepthNet | None:
    if config.depth_model is None:
        return None
    try:
        net = load_depth_net(config.depth_model)
    except ConfigError as error:
        _log.warning("the depth model cannot be used, averages choose instead", problem=str(error))
        return None
    if config.depth_score == "utility" and net.config.profile != config.profile:
        _log.warning("the depth model's utility is of another profile", has=net.config.profile, wants=config.profile)
    if missing := [each for each in config.experts if each not in net.config.trained_on]:
        _log.warning("the depth model has never seen some experts", experts=", ".join(missing))
    return net
