"""An error on one rank, before ranks have compared what they ask for, is one on all of them.

A rank that cannot take part answers the others with its error in place of what it asks for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from gemmkit.distributed.team import Team
from gemmkit.errors import DistributedError, GemmkitError, UsageError


def ask_all(teams: Sequence[Team], said: Any, error: str = "") -> list[list[Any]]:
    """What the ranks along each dimension of a mesh say, by dimension and rank.

    An error of one rank goes along the first dimension, and from there along the second: all ranks
    of the mesh raise the same.

    Args:
        teams: of this rank, one for each dimension.
        said: what this rank says, in JSON's types.
        error: why this rank cannot take part.

    Raises:
        DistributedError: a rank cannot, or does not answer.
    """
    told = []
    for team in teams:
        answers = team.communicator.agree(json.dumps([error, said]))
        every = [json.loads(each) for each in answers]
        # The last in the order of letters, so that it is the same on all ranks of the mesh.
        error = max(each for each, _ in every)
        told.append([each for _, each in every])
    if error:
        raise DistributedError(error)
    return told


def refuse(teams: Sequence[Team], error: Exception) -> None:
    """Tell all other ranks why this one does not take part in a product; the caller raises it.

    Ranks that ask nobody, since they have seen the product before, are told by the log of calls.
    """
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return
    if not teams:
        return
    text = f"rank {dist.get_rank()} cannot take part: {error}"
    try:
        for team in teams:
            if team.log is not None:
                team.log.ask(text)
        ask_all(teams, None, text)
    except DistributedError:
        # What this rank itself raises says more.
        return


@contextmanager
def refusing(teams: Callable[[], Sequence[Team]]) -> Iterator[None]:
    """Read and check a rank's arguments: what is wrong with them is told to all other ranks.

    Args:
        teams: finds those of this rank, none where they are what is wrong.

    Raises:
        GemmkitError: what is wrong; a UsageError where PyTorch or Python cannot read an argument.
    """
    try:
        yield
    except DistributedError:
        # All ranks have it.
        raise
    except GemmkitError as error:
        refuse(teams(), error)
        raise
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        wrong = UsageError(f"an argument cannot be read: {error}")
        refuse(teams(), wrong)
        raise wrong from error


def confirm(teams: Sequence[Team], error: Exception | None) -> None:
    """Have all ranks of a mesh raise what one of them has found; ranks of one group find the same.

    Raises:
        DistributedError: a rank has found something.
    """
    if len(teams) == 1:
        if error is not None:
            raise error
        return
    try:
        ask_all(teams, None, "" if error is None else str(error))
    except DistributedError as told:
        if error is not None and str(error) == str(told):
            raise error from None
        raise
