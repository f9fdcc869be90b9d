"""Strategy "one-shot", with threads in place of GPUs, which carry out its launches in Python."""

from __future__ import annotations

import ctypes
import re
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from gemmkit.distributed import mapped_memory, one_shot  # noqa: E402
from gemmkit.distributed.local import LocalProduct  # noqa: E402
from gemmkit.distributed.one_shot import Addition, Gathering, OneShot, OneShotCollectives  # noqa: E402
from gemmkit.distributed.one_shot_calls import one_shot_call  # noqa: E402
from gemmkit.distributed.perform import perform  # noqa: E402
from gemmkit.distributed.splits import shares  # noqa: E402
from gemmkit.distributed.spread import SpreadProduct  # noqa: E402
from gemmkit.distributed.strategy import Strategy  # noqa: E402
from gemmkit.errors import UnsupportedProblem  # noqa: E402
from gemmkit.kernels import one_shot as kernels  # noqa: E402
from gemmkit.kernels.one_shot import HEADER_BYTES  # noqa: E402

PATIENCE = 20.0
KINDS = {"Half": torch.float16, "BFloat16": torch.bfloat16, "float": torch.float32}
UNITS = {"uint4": 16, "uint2": 8, "unsigned": 4, "unsigned short": 2, "unsigned char": 1}


class Launch:
    """What a launch of one_shot.cu does, of one rank; all others have to launch as many blocks."""

    def __init__(self, hosts, plan, arguments):
        self.hosts, self.plan, self.arguments = hosts, plan, arguments
        _, rank, ranks, *_ = plan.signature
        self.rank, self.ranks = int(rank), int(ranks)
        self.first, self.inside = re.match(r"(\w+)<(.*)>", plan.entry).groups()
        table = (ctypes.c_uint64 * self.ranks).from_address(arguments["workspace"])
        self.lines = [each + HEADER_BYTES for each in table]

    def run(self, addresses, stream):
        own, _, out = addresses
        grids = self.hosts["grids"]
        grids[self.rank] = self.plan.grid
        self.hosts["barrier"].wait(PATIENCE)
        assert len(set(grids.values())) == 1
        if self.first == "gather_lines":
            unit = UNITS[self.inside]
            offset, count = (unit * int(each) for each in self.plan.signature[-2:])
            assert count == 0 or own % unit == 0
            for to in self.lines:
                assert (to + offset) % unit == 0
                ctypes.memmove(to + offset, own, count)
            self.hosts["barrier"].wait(PATIENCE)
            return
        kind, elements, returned = self.inside.split(", ")
        kind = KINDS[kind]
        unit = kind.itemsize * int(elements)
        table = (ctypes.c_int64 * (2 * self.ranks)).from_address(self.arguments["offsets"])
        places = [
            (unit * table[2 * each], unit * table[2 * each + 1]) for each in range(self.ranks)
        ]
        for to, (begin, count) in zip(self.lines, places, strict=True):
            assert (own + begin) % unit == 0
            ctypes.memmove(to + self.rank * count, own + begin, count)
        self.hosts["barrier"].wait(PATIENCE)
        count = places[self.rank][1]
        if count:
            terms = [
                tensor_at(self.lines[self.rank] + each * count, count, kind).float()
                for each in range(self.ranks)
            ]
            to = out + (places[self.rank][0] if returned == "true" else 0)
            tensor_at(to, count, kind)[:] = sum(terms[1:], terms[0])
        if returned == "true":
            self.hosts["out"][self.rank] = out
            self.hosts["barrier"].wait(PATIENCE)
            for begin, count in places:
                owner = places.index((begin, count))
                if owner != self.rank:
                    ctypes.memmove(out + begin, self.hosts["out"][owner] + begin, count)
        self.hosts["barrier"].wait(PATIENCE)


def tensor_at(address, nbytes, kind):
    return torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=kind)


class Mapped:
    """Memory of this process in place of mapped memory."""

    def __init__(self, hosts, rank, ranks, nbytes):
        # At a multiple of 256, as on a GPU.
        memory = torch.full((nbytes + 256,), 0xFF, dtype=torch.uint8)
        self.memory = memory[-memory.data_ptr() % 256 :][:nbytes]
        hosts[rank] = self.memory
        hosts["barrier"].wait(PATIENCE)
        self.addresses = [hosts[each].data_ptr() for each in range(ranks)]

    def ready(self, group, device):
        pass


@pytest.fixture
def run(monkeypatch):
    """Runs a function of a `OneShot` for each rank, in a thread each."""
    own = threading.local()

    def all_ranks(ranks, work):
        hosts = {"barrier": threading.Barrier(ranks), "grids": {}, "out": {}}
        monkeypatch.setattr(
            one_shot, "MappedMemory", lambda group, device, n: Mapped(hosts, own.rank, ranks, n)
        )
        monkeypatch.setattr(
            mapped_memory.dist, "barrier", lambda group: hosts["barrier"].wait(PATIENCE)
        )
        monkeypatch.setattr(
            OneShot,
            "launch",
            lambda self, plan, **tables: Launch(
                hosts, plan, {"workspace": self.mailbox.table.data_ptr(), **tables}
            ),
        )

        def one(rank):
            own.rank = rank
            group = SimpleNamespace(group=None, rank=rank, size=ranks)
            return work(OneShot(group, torch.device("cpu")))

        with ThreadPoolExecutor(ranks) as pool:
            return [each.result() for each in [pool.submit(one, rank) for rank in range(ranks)]]

    event = SimpleNamespace(record=lambda stream: None)
    stream = SimpleNamespace(wait_event=lambda event: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(mapped_memory.WatchedCalls, "_has_ended", lambda self: True)
    monkeypatch.setattr(one_shot, "context_of", lambda index: None)
    monkeypatch.setattr(one_shot, "current_stream", lambda index: 0)
    return all_ranks


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("form", ["gather", "scatter", "reduce"])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("round_bytes", [1 << 20, 0])
def test_products(run, monkeypatch, ranks, form, kind, round_bytes):
    """Shares that are uneven or empty, of lines of any length, one call after the other; without
    bytes to be spared, sums for all ranks come in two steps from three ranks on."""
    monkeypatch.setattr(kernels, "_BYTES_OF_ROUND", round_bytes)
    shapes = [(21, 6, 11), (2, 3, 5), (64, 8, 16), (21, 6, 11)]
    random = torch.Generator().manual_seed(1)

    def whole(m, n, k):
        return [torch.randint(-2, 3, each, generator=random).to(kind) for each in ((m, k), (k, n))]

    problems = [whole(*each) for each in shapes]

    def engine(a, b, out, **_):
        out[:] = a.float() @ b.float()

    def work(by):
        collectives = OneShotCollectives(by)
        team = SimpleNamespace(rank=by.rank, size=by.size, collectives=lambda strategy: collectives)
        made = []
        for a, b in problems:
            lines, depth = shares(len(a), ranks), shares(len(b), ranks)
            split, fixed = a[slice(*lines[by.rank])], b
            if form != "gather":
                split, fixed = a[:, slice(*depth[by.rank])], b[slice(*depth[by.rank])]
            sizes = [each.size for each in lines]
            made.append(
                perform(
                    *(team, form, Strategy("one-shot"), split, fixed, sizes),
                    *(LocalProduct(engine=engine), kind),
                )
            )
        return made

    by_rank = run(ranks, work)
    for place, (a, b) in enumerate(problems):
        want = (a.float() @ b.float()).to(kind)
        found = [each[place] for each in by_rank]
        if form == "scatter":
            assert torch.equal(torch.cat(found), want)
        else:
            assert all(torch.equal(each, want) for each in found)


# Bias, residual, C and `out` of prepared calls; `out` is strided.
BESIDE = [(), ("bias", "residual"), ("c", "out"), ("bias", "c", "out")]


@pytest.mark.parametrize("form", ["gather", "scatter", "reduce"])
@pytest.mark.parametrize("turned", [False, True])
def test_prepared_calls(run, form, turned):
    """What is spread are rows of the result, or its columns; operands are strided."""
    ranks, (m, n, k) = 3, (7, 5, 8)
    random = torch.Generator().manual_seed(2)

    def numbers(*shape):
        return torch.randint(-2, 3, shape, generator=random).float()

    a, b, c, residual, bias = numbers(m, k), numbers(k, n), numbers(m, n), numbers(m, n), numbers(n)
    # One for each row of A and column of B, in both forms that are prepared: k split, or B alone.
    scale_a, scale_b = 1 + numbers(m, 1).abs(), 1 + numbers(1, n).abs()
    if form == "gather":
        scale_a, scale_b = (None, scale_b) if not turned else (scale_a, None)
    exact = a * (1 if scale_a is None else scale_a) @ (b * (1 if scale_b is None else scale_b))
    spread = shares(n if turned else m, ranks)

    def engine(a, b, out, scale_a=None, scale_b=None, bias=None, residual=None, c=None, **given):
        made = (a if scale_a is None else a * scale_a) @ (b if scale_b is None else b * scale_b)
        made = made if c is None else made + given["beta"] * c
        made = made if bias is None else made + bias
        out.copy_(made if residual is None else made + residual)

    def work(by):
        lines, depth = spread[by.rank], shares(k, ranks)[by.rank]

        def own(matrix):
            """What belongs to this rank's part of the result."""
            if form == "reduce":
                return matrix
            if (form == "gather") != turned:
                others = shares(matrix.shape[-1], ranks)[by.rank]
                return matrix[..., slice(*others)]
            others = shares(len(matrix), ranks)[by.rank]
            return matrix if matrix.dim() == 1 else matrix[slice(*others)]

        mine = [a[:, slice(*depth)], b[slice(*depth)]]
        scales = [scale_a, scale_b]
        if form == "gather":
            mine = [a[slice(*lines)], own(b)] if not turned else [own(a), b[:, slice(*lines)]]
            scales = [each if each is None else own(each) for each in scales]
        found = []
        for names in BESIDE:
            given = {
                name: own(each)
                for name, each in (("bias", bias), ("residual", residual), ("c", c))
                if name in names
            }
            product = LocalProduct(engine=engine, beta=3.0 if "c" in names else 0.0, **given)
            asked = SpreadProduct(*mine, (), (), (), product)
            sizes = [each.size for each in spread]
            call = one_shot_call(asked, form, by, sizes, turned=turned)
            for _ in range(2):
                out = torch.full_like(own(c).T, torch.nan).T if "out" in names else None
                made = call(
                    *mine, *(given.get(name) for name in ("bias", "residual", "c")), out, *scales
                )
                assert out is None or made.data_ptr() == out.data_ptr()
            want = exact + 3 * c if "c" in names else exact
            want = want + bias if "bias" in names else want
            found.append((made.clone(), own(want + residual if "residual" in names else want)))
        return found

    for found in run(ranks, work):
        for made, want in found:
            assert torch.equal(made, want)


def test_what_calls_exchange_is_kept(run):
    """Of calls that are not prepared: a CUDA graph cannot capture how it is made."""

    def work(by):
        collectives = OneShotCollectives(by)

        def tables():
            lines, sums = torch.ones(2, 8), torch.ones(4, 8)
            assert torch.equal(collectives.gather(lines, [2, 2]), torch.ones(4, 8))
            assert torch.equal(collectives.scatter(sums, [2, 2]), torch.full((2, 8), 2.0))
            assert torch.equal(collectives.reduce(sums), torch.full((4, 8), 2.0))
            # Of shares, which the GPU reads.
            return [
                each._shares for each in collectives._made.values() if isinstance(each, Addition)
            ]

        return tables(), tables()

    for first, later in run(2, work):
        assert len(first) == len(later) == 2
        assert all(one is other for one, other in zip(first, later, strict=True))


def test_mailboxes_grow_and_launches_follow(run, monkeypatch):
    monkeypatch.setattr(one_shot, "_STEP", 256)

    def work(by):
        few = Gathering(by, torch.float32, (2, 2), 4)
        add = Addition(by, torch.float32, (1, 1), 4)
        own = torch.full((2, 4), float(by.rank))
        first = few(own).clone(), add(own)
        small = weakref.ref(by.mailbox)
        many = Gathering(by, torch.float32, (20, 20), 8)
        assert small() is None
        many(torch.full((20, 8), -1.0))
        return first, (few(own).clone(), add(own))

    for first, later in run(2, work):
        assert torch.equal(first[0], torch.tensor([0.0, 0, 1, 1])[:, None].expand(4, 4))
        assert torch.equal(first[1], torch.ones(1, 4))
        assert all(torch.equal(one, other) for one, other in zip(first, later, strict=True))


def test_operands_at_any_address(run):
    def work(by):
        gather = Gathering(by, torch.bfloat16, (3, 3), 8)
        made = []
        for offset in (0, 1, 4):
            # Units differ from rank to rank.
            start = offset if by.rank else 0
            numbers = torch.arange(64).bfloat16()[start : start + 24]
            made.append(gather(numbers.view(3, 8)).clone())
        return made

    for found in run(2, work):
        for offset, each in zip((0, 1, 4), found, strict=True):
            numbers = torch.arange(64).bfloat16()
            want = torch.cat([numbers[:24], numbers[offset : offset + 24]]).view(6, 8)
            assert torch.equal(each, want)


def test_all_is_freed_with_a_group(run):
    """Its memory, with no collection of cycles, and whatever watches its calls."""

    def work(by):
        collectives = OneShotCollectives(by)
        collectives.reduce(torch.ones(2, 2))
        collectives.ended()
        return weakref.ref(by), weakref.ref(by.mailbox)

    for each in run(2, work):
        assert [found() for found in each] == [None, None]


def test_types_that_are_not_added_up(run):
    def work(by):
        with pytest.raises(UnsupportedProblem, match="float8_e4m3"):
            Addition(by, torch.float8_e4m3fn, (2, 2), 4)
        return True

    assert all(run(2, work))
