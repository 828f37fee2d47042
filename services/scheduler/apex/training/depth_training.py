"""All of ``forerun train depth`` after its options are read."""

from pathlib import Path

from services.common.expert import Expert
from services.common.expert_profiles import PROFILES, ProfileName
from services.common.training.progress import Listener
from services.scheduler.apex.block_table import read_blocks
from services.scheduler.apex.depth_net import save_depth_net
from services.scheduler.apex.depth_net_config import DepthNetConfig
from services.scheduler.apex.features import EXPERT_ROWS
from services.scheduler.apex.training.card import Source, write_pages
from services.scheduler.apex.training.examples import Examples, split, usable
from services.scheduler.apex.training.report import Report, evaluate
from services.scheduler.apex.training.trainer import TrainOptions, train


def train_depth_model(
    traces: Path, out: Path, profile: ProfileName, options: TrainOptions, command: str, listen: Listener
) -> Report:
    """Trains from the block records in ``traces`` and writes the model with its pages into ``out``.

    Args:
        command: the command line, for people who want to make it again.

    Raises:
        ConfigError: the traces cannot be learnt from.
    """
    listen.step("read traces")
    parts = split(usable(read_blocks(traces)))
    learnt, validation, judged = (Examples.of(each, PROFILES[profile]) for each in parts)
    listen.step("train", options.epochs)
    net, course = train(
        learnt, validation, options, lambda epoch, loss: listen.reach(epoch, f"validation loss {loss:.4f}")
    )
    seen = {Expert(each) for each in parts[0].expert}
    config = DepthNetConfig(
        trained_on=tuple(each for each in EXPERT_ROWS if each in seen),
        width=options.width,
        depth_width=options.depth_width,
        profile=profile,
        ablations=options.ablations,
    )
    report = evaluate(save_depth_net(out, config, net.tensors()), learnt, judged)
    write_pages(out, config, report, Source.of(command, traces, parts), options, course)
    return report
