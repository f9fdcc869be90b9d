"""A process group with all that gemmkit has found out about it: made once, kept with the group."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import socket
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gemmkit.devices.context import context_of
from gemmkit.devices.driver import library
from gemmkit.distributed.call_log import CallLog, shared_log
from gemmkit.distributed.collectives import Collectives, GroupCollectives
from gemmkit.distributed.communicator import Communicator
from gemmkit.distributed.process_group import GroupCommunicator
from gemmkit.distributed.strategy import Strategy
from gemmkit.distributed.watchdog import timeout_of
from gemmkit.errors import DistributedError, GemmkitError, UnsupportedProblem, UsageError

if TYPE_CHECKING:
    from gemmkit.distributed.one_shot import OneShot, OneShotCollectives

# Said by a rank in place of what its GPU is, where it has none.
_NO_GPU = "no GPU"


class Team:
    """The ranks of a process group.

    Raises:
        UsageError: this process is not one of them.
        DistributedError: ranks do not answer, or have GPUs of different kinds.
    """

    def __init__(self, group: Any, device: Any) -> None:
        self.communicator = GroupCommunicator(group)
        self.rank, self.size = self.communicator.rank, self.communicator.size
        # Their numbers among all ranks, by which messages name them.
        self.global_ranks: Sequence[int] = self.communicator.peers
        if self.rank < 0:
            raise UsageError("this process is not a rank of the given process group")
        self.device = device
        # What is predicted for; on CPUs, nothing is.
        self.board = context_of(device.index).spec if device.type == "cuda" else None
        self.symmetric: Communicator | None = None
        self._one_shot: OneShotCollectives | None = None
        # On GPUs of one host: on CPUs ranks compare each call.
        self.log: CallLog | None = None
        self.why_not_symmetric = ""
        facts = self.communicator.agree(_facts(device))
        check_alike(facts)
        self.hosts = len({each.split("|")[0] for each in facts})
        if device.type == "cuda":
            if self.hosts == 1 and self.size > 1:
                self.log = shared_log(self.communicator, timeout_of(group, device))
            self._try_symmetric(facts)

    def _try_symmetric(self, facts: Sequence[str]) -> None:
        """Map the memory of all ranks' GPUs, if they are on one host; all ranks, or none."""
        said = ""
        if self.hosts > 1:
            said = "its ranks are on several hosts"
        elif not _reach_each_other(facts, self.device):
            said = "its GPUs do not reach each other's memory"
        else:
            try:
                from gemmkit.distributed.symmetric import SymmetricCommunicator
            except ImportError as error:
                said = f"this PyTorch has no symmetric memory ({error})"
        if not any(self.communicator.agree(said)):
            made = SymmetricCommunicator(self.communicator, self.device)
            try:
                made.reserve(1)
            except (GemmkitError, RuntimeError) as error:
                said = str(error).splitlines()[0]
            if not any(found := self.communicator.agree(said)):
                self.symmetric = made
                return
            said = next(filter(None, found))
        self.why_not_symmetric = said or "another rank has no symmetric memory"

    def means(self, strategy: Strategy) -> Communicator:
        """What carries out a strategy's transfers.

        Raises:
            UnsupportedProblem: this group has no such means.
        """
        if strategy.means != "copies":
            return self.communicator
        self._check_symmetric(strategy)
        assert self.symmetric is not None
        return self.symmetric

    def collectives(self, strategy: Strategy) -> Collectives:
        """What gathers all lines before a product, or adds up all sums after it; all ranks come to
        the first call together.

        Raises:
            UnsupportedProblem: this group has no such means.
            DistributedError: a rank does not come.
        """
        if strategy.means == "collective":
            return GroupCollectives(self.communicator)
        return self._one_shot_collectives()

    @property
    def one_shot(self) -> OneShot:
        """The means of strategy "one-shot", with what `collectives` raises."""
        return self._one_shot_collectives().by

    def _one_shot_collectives(self) -> OneShotCollectives:
        if self._one_shot is None:
            self._check_symmetric(Strategy("one-shot"))
            from gemmkit.distributed.one_shot import OneShot, OneShotCollectives

            self._one_shot = OneShotCollectives(OneShot(self.communicator, self.device))
        return self._one_shot

    def _check_symmetric(self, strategy: Strategy) -> None:
        if self.symmetric is None:
            reason = self.why_not_symmetric or "its ranks compute on CPUs"
            raise UnsupportedProblem(
                f"strategy '{strategy}' needs GPUs that write to each other's memory, and this "
                f"group's do not: {reason}"
            )


_teams: dict[tuple[str, Any], tuple[Any, Team]] = {}


def team_of(group: Any, device: Any) -> Team:
    """The team of a process group, by default that of all ranks, on a device.

    All ranks come to the first call together.

    Raises:
        UsageError: there is no process group.
        DistributedError: as `Team`.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise UsageError(
            "there is no process group: call torch.distributed.init_process_group first, in each "
            "process that torchrun starts"
        )
    group = dist.group.WORLD if group is None else group
    if not isinstance(group, dist.ProcessGroup):
        raise UsageError(
            "this process is not a rank of the given process group, or what is given is none"
        )
    key = group.group_name, device
    known = _teams.get(key)
    # A later group may have the name of one that was destroyed.
    if known is None or known[0] is not group:
        if not _teams:
            atexit.register(_forget_all)
        _forget([team for other, team in _teams.values() if _is_destroyed(other)])
        known = _teams[key] = group, Team(group, device)
    return known[1]


# --- groups that are no more ----------------------------------------------------------------------

# What drops everything that others keep of some teams.
_forgetting: list[Callable[[Collection[Team]], None]] = []


def forgetting(forget: Callable[[Collection[Team]], None]) -> Callable[[Collection[Team]], None]:
    """Have a function called with teams whose groups were destroyed, to drop what it keeps of them.

    A process group ends its threads when nothing holds it any more. One of gloo's that is left when
    the interpreter ends may abort the process: its threads release the tensors of the last
    operation, for which they need an interpreter.
    """
    _forgetting.append(forget)
    return forget


def _forget(teams: Collection[Team]) -> None:
    if not teams:
        return
    for key in [key for key, (_, team) in _teams.items() if team in teams]:
        del _teams[key]
    for forget in _forgetting:
        forget(teams)


def _forget_all() -> None:
    """Hold no group any more; cycles hold some by frames of errors, say."""
    atexit.unregister(_forget_all)
    destroyed = [weakref.ref(group) for group, _ in _teams.values() if _is_destroyed(group)]
    _forget([team for _, team in _teams.values()])
    if any(group() is not None for group in destroyed):
        gc.collect()


def _is_destroyed(group: Any) -> bool:
    try:
        dist.get_process_group_ranks(group)
    except (KeyError, ValueError, RuntimeError):
        return True
    return False


def _facts(device: Any) -> str:
    """Host, kind of GPU, version of CUDA, identity and driver of a rank's device."""
    host = f"{socket.gethostname()}:{_boot_id()}"
    if device.type != "cuda":
        return f"{host}|{_NO_GPU}||{os.getpid()}|"
    properties = torch.cuda.get_device_properties(device)
    kind = f"{properties.name}, compute capability {properties.major}.{properties.minor}"
    version = ctypes.c_int(0)
    library().cuDriverGetVersion(ctypes.byref(version))
    return f"{host}|{kind}|{torch.version.cuda}|{properties.uuid}|{version.value}"


def _boot_id() -> str:
    """What tells hosts of the same name apart."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123
            return file.read().strip()
    except OSError:
        return ""


def check_alike(facts: Sequence[str]) -> None:
    """Refuse ranks whose results would differ.

    Raises:
        DistributedError: their GPUs, versions of CUDA or drivers do.
    """
    for name, place in (("GPU", 1), ("version of CUDA", 2), ("CUDA driver", 4)):
        found = [each.split("|")[place] for each in facts]
        for rank, each in enumerate(found):
            if each != found[0]:
                raise DistributedError(
                    f"ranks differ in their {name}: rank 0 has {found[0] or 'none'}, rank {rank} "
                    f"has {each or 'none'}; results would not be the same on all of them"
                )
    devices = [(each.split("|")[0], each.split("|")[3]) for each in facts]
    if len(set(devices)) < len(devices):
        raise DistributedError(
            "two ranks use the same GPU: call torch.cuda.set_device(local rank) before the group "
            "is made"
        )


def _reach_each_other(facts: Sequence[str], device: Any) -> bool:
    """Whether this rank's GPU can read and write the memory of all others of this host."""
    ordinals = {
        str(torch.cuda.get_device_properties(each).uuid): each
        for each in range(torch.cuda.device_count())
    }
    own = device.index
    peers = [ordinals.get(each.split("|")[3]) for each in facts]
    # Those that are hidden from this process are mapped by their handles all the same.
    return all(
        peer is None or peer == own or torch.cuda.can_device_access_peer(own, peer)
        for peer in peers
    )
