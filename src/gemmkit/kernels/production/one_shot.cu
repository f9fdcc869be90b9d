// Lines that ranks exchange, or add up, with one launch per rank, which writes them straight to memory that the
// GPUs map of each other ("one-shot"): for messages so short that the steps of a ring take longer than their bytes.
//
// Blocks synchronize across ranks by number: block b waits for block b of the other ranks alone, which deals with
// the same units of every share, so that the blocks of a launch need not be resident all at once. A mailbox may
// be overwritten once its rank has entered the next launch: on each rank, launches and what reads the lines
// between them follow each other on a stream.
#include "layout.cuh"
#include "typed.cuh"

constexpr int THREADS = 512, MOST_RANKS = 64, MOST_BLOCKS = 64;
// Units that a thread loads before it stores the first of them.
constexpr int AT_ONCE = 4;

enum Stage { ENTERED, SENT, RETURNED, STAGES };

// The header of a rank's mailbox, which lines follow: for each of its blocks the number of launches so far, and
// flags by which the blocks of the other ranks tell it the number of the launch in which they reached a stage.
struct alignas(16) Mailbox {
  unsigned launches[MOST_BLOCKS];
  unsigned told[STAGES][MOST_RANKS][MOST_BLOCKS];

  template <class T>
  __device__ __forceinline__ T* lines() {
    return reinterpret_cast<T*>(this + 1);
  }
};

// Keeps a block in step with those of its number on the other ranks. All of its threads call the functions; thread
// i writes and reads the flags of rank i.
struct Rounds {
  Mailbox* const* const mailboxes;
  const int rank, ranks;
  const unsigned round;

  __device__ __forceinline__ Rounds(Mailbox* const* mailboxes, int rank, int ranks)
      : mailboxes(mailboxes),
        rank(rank),
        ranks(ranks),
        round(mailboxes[rank]->launches[blockIdx.x] + 1) {}

  // A thread that acquires the flag also sees what the block's threads wrote before their last barrier.
  __device__ __forceinline__ void tell(Stage stage) const {
    if (!deals_with_one()) return;
    unsigned* flag = &mailboxes[threadIdx.x]->told[stage][rank][blockIdx.x];
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(round) : "memory");
  }

  // Until all other ranks have told. Launch numbers may wrap.
  __device__ __forceinline__ void wait(Stage stage) const {
    if (deals_with_one()) {
      const unsigned* flag = &mailboxes[rank]->told[stage][threadIdx.x][blockIdx.x];
      unsigned told;
      do {
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(told) : "l"(flag) : "memory");
      } while (static_cast<int>(told - round) < 0);
    }
    __syncthreads();
  }

  __device__ __forceinline__ void end() const {
    if (threadIdx.x == 0) mailboxes[rank]->launches[blockIdx.x] = round;
  }

 private:
  __device__ __forceinline__ bool deals_with_one() const {
    return threadIdx.x < ranks && threadIdx.x != rank;
  }
};

// Calls `use(read(number), number)` for this block's share of `count` units; a thread reads AT_ONCE of them
// before it uses the first.
template <class Unit, class Read, class Use>
__device__ __forceinline__ void for_units(long long count, const Read& read, const Use& use) {
  const long long step = static_cast<long long>(gridDim.x) * THREADS;
  for (long long first = blockIdx.x * THREADS + threadIdx.x; first < count;
       first += AT_ONCE * step) {
    Unit units[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      if (first + i * step < count) units[i] = read(first + i * step);
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      if (first + i * step < count) use(units[i], first + i * step);
    }
  }
}

// Brings this rank's units, `count` of them, to all mailboxes, from unit `offset` on of their lines.
template <class Unit>
__global__ void __launch_bounds__(THREADS)
    gather_lines(Mailbox* const* mailboxes, int rank, int ranks, const Unit* own, long long offset,
                 long long count) {
  const Rounds rounds(mailboxes, rank, ranks);
  rounds.tell(ENTERED);
  rounds.wait(ENTERED);
  for_units<Unit>(
      count, [&](long long number) { return own[number]; },
      [&](const Unit& unit, long long number) {
        for (int i = 0; i < ranks; ++i) {
          const int peer = rank + i < ranks ? rank + i : rank + i - ranks;
          mailboxes[peer]->template lines<Unit>()[offset + number] = unit;
        }
      });
  __syncthreads();
  rounds.tell(SENT);
  rounds.wait(SENT);
  rounds.end();
}

// COUNT elements that another GPU wrote, past the L1 cache, which is not coherent with such writes.
template <class T, int COUNT>
__device__ __forceinline__ Pack<T, COUNT> received(const T* from) {
  Pack<T, COUNT> pack;
  unsigned (&words)[Pack<T, COUNT>::WORDS] = pack.words;
  if constexpr (pack.BYTES == 16) {
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "l"(from)
                 : "memory");
  } else if constexpr (pack.BYTES == 8) {
    asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];"
                 : "=r"(words[0]), "=r"(words[1])
                 : "l"(from)
                 : "memory");
  } else if constexpr (pack.BYTES == 4) {
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(words[0]) : "l"(from) : "memory");
  } else {
    unsigned short half;
    asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(half) : "l"(from) : "memory");
    words[0] = half;
  }
  return pack;
}

// The units of each rank's share among those of `sums`.
struct Share {
  long long first, count;
};

// Adds up the ranks' sums of this rank's share, in the order of ranks, and writes them to `out`: each rank sends
// every other one its sums of that one's share. `out` has the share alone, which may be that of all; or, where
// results are RETURNED, those of all shares, and each rank sends its own to all others.
template <class T, int COUNT, bool RETURNED_TO_ALL>
__global__ void __launch_bounds__(THREADS) add_lines(Mailbox* const* mailboxes, int rank, int ranks,
                                                     const T* sums, const Share* shares, T* out) {
  using Unit = Pack<T, COUNT>;
  using Sum = Either<(sizeof(T) == 8), double, float>;
  const Rounds rounds(mailboxes, rank, ranks);
  const auto for_peers = [&](const auto& use) {
    for (int i = 1; i < ranks; ++i) {
      const int peer = rank + i < ranks ? rank + i : rank + i - ranks;
      use(peer, mailboxes[peer]->template lines<T>());
    }
  };
  const auto own = [&](long long number) {
    Unit unit;
    unit.load(sums + number * COUNT);
    return unit;
  };
  rounds.tell(ENTERED);
  rounds.wait(ENTERED);
  for_peers([&](int peer, T* lines) {
    const Share share = shares[peer];
    T* to = lines + rank * share.count * COUNT;
    for_units<Unit>(
        share.count, [&](long long number) { return own(share.first + number); },
        [&](const Unit& unit, long long number) { unit.store(to + number * COUNT); });
  });
  __syncthreads();
  rounds.tell(SENT);
  rounds.wait(SENT);
  const Share share = shares[rank];
  const T* lines = mailboxes[rank]->template lines<T>();
  // Results lie behind the sums of the longest share, which is the first one.
  const long long results = RETURNED_TO_ALL ? ranks * shares[0].count : 0;
  for_units<Unit>(
      share.count,
      [&](long long number) {
        Sum total[COUNT];
        for (int from = 0; from < ranks; ++from) {
          const Unit unit = from == rank
                                ? own(share.first + number)
                                : received<T, COUNT>(lines + (from * share.count + number) * COUNT);
#pragma unroll
          for (int i = 0; i < COUNT; ++i) {
            const Sum term = widened<Sum>(unit.get(i));
            total[i] = from == 0 ? term : total[i] + term;
          }
        }
        Unit result;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) result.set(i, Narrowed<T>::of(total[i]));
        return result;
      },
      [&](const Unit& unit, long long number) {
        if constexpr (RETURNED_TO_ALL) {
          number += share.first;
          for_peers([&](int, T* to) { unit.store(to + (results + number) * COUNT); });
        }
        unit.store(out + number * COUNT);
      });
  if constexpr (RETURNED_TO_ALL) {
    __syncthreads();
    rounds.tell(RETURNED);
    rounds.wait(RETURNED);
    for_peers([&](int peer, T*) {
      const Share its = shares[peer];
      for_units<Unit>(
          its.count,
          [&](long long number) {
            return received<T, COUNT>(lines + (results + its.first + number) * COUNT);
          },
          [&](const Unit& unit, long long number) {
            unit.store(out + (its.first + number) * COUNT);
          });
    });
  }
  rounds.end();
}
