"""Running one step ahead of a single stage: the next plan waits at the stage while it computes this one.

Lives in vLLM's engine-core process. A stage that samples its own tokens needs none of them from the scheduler, so the
next step can be planned with a placeholder for the token that is still being computed; the stage fills it with what it
has just sampled. The time that planning, sending and reading results take is then hidden behind the model.

Relies on (vLLM 0.32, model runner V1): ``AsyncScheduler`` schedules a request again with an output placeholder while
its last step is in flight, never past ``max_tokens``, and drops what a stopped request's last step computed in vain;
the last rank's runner keeps the tokens that it samples itself.
"""

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from services.scheduler.vllm_scheduler import ForerunScheduler


class RunAheadScheduler(ForerunScheduler, AsyncScheduler):
    """Forerun's scheduler over vLLM's asynchronous one; for replicas of one stage, with ``run_ahead``."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        # The engine core reads from this, after it has built its scheduler, how many steps it keeps in flight: two.
        # vLLM's CPU platform turns the option off, since its own executors gain nothing there. The stage's
        # configuration stays without it: its runner would expect a broadcast of sampled tokens.
        vllm_config.scheduler_config.async_scheduling = True
        super().__init__(vllm_config, *args, **kwargs)
