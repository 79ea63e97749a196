// Kernels with one fault each, which the emulation has to catch (EmulationTest.cpp).
#include "tests/unit/cuda/FaultyKernels.h"

namespace recast::cuda {
RECAST_DEVICE_BEGIN
namespace {

constexpr int kThreads = 64;
using Row = Array<uint32_t, kThreads>;

/// Turns a block's elements round, through shared memory.
template <bool hasBarrier> void turn(const FaultyArgs &a) {
  RECAST_SHARED(Row, row);
  int t = threadIndex();
  row[t] = a.src[gridThread()];
  if constexpr (hasBarrier)
    syncThreads();
  a.dst[gridThread()] = row[blockThreads() - 1 - t];
}
void sum(const FaultyArgs &a) {
  uint32_t value = a.src[gridThread()];
  for (int lanes = kWarp / 2; lanes; lanes /= 2)
    value += shuffleXor(value, lanes);
  a.dst[gridThread()] = value + ballot(lane() < 3);
}
void readPastTheEnd(const FaultyArgs &a) { a.dst[gridThread()] = a.src[gridThread() + 1]; }
void writePastTheEnd(const FaultyArgs &a) { a.dst[gridThread() + 1] = a.src[gridThread()]; }
void writeInput(const FaultyArgs &a) { const_cast<uint32_t *>(a.src)[gridThread()] = 1; }
void storeTogether(const FaultyArgs &a) { a.dst[0] = static_cast<uint32_t>(threadIndex()); }
void addTogether(const FaultyArgs &a) { atomicAdd(a.dst, 1); }
void addPlainly(const FaultyArgs &a) {
  if (threadIndex() == 5)
    a.dst[0] = 1;
  else
    atomicAdd(a.dst, 1);
}
void storeAcrossBlocks(const FaultyArgs &a) {
  if (threadIndex() == 0)
    a.dst[0] = static_cast<uint32_t>(blockIndex());
}
void leaveBeforeTheBarrier(const FaultyArgs &a) {
  if (threadIndex() == 7)
    return;
  syncThreads();
  a.dst[gridThread()] = 0;
}
void differentBarriers(const FaultyArgs &a) {
  if (threadIndex() % 2)
    syncThreads();
  else
    syncThreads(-1);
  a.dst[gridThread()] = 0;
}
void leaveTheWarp(const FaultyArgs &a) { a.dst[gridThread()] = lane() == 9 ? 0 : shuffleXor(a.src[gridThread()], 1); }
void misaligned(const FaultyArgs &a) {
  if (threadIndex() < 2)
    reinterpret_cast<Bytes16 *>(a.dst)[threadIndex()] = *reinterpret_cast<const Bytes16 *>(a.src + threadIndex());
}
void readUnwritten(const FaultyArgs &a) {
  RECAST_SHARED(Row, row);
  if (threadIndex())
    row[threadIndex()] = 1;
  syncThreads();
  a.dst[gridThread()] = row[threadIndex()];
}
void orderedByTheWarp(const FaultyArgs &a) {
  RECAST_SHARED(Row, row);
  row[threadIndex()] = a.src[gridThread()];
  syncWarp();
  a.dst[gridThread()] = row[threadIndex() ^ 1];
}
void notOrderedByTheWarp(const FaultyArgs &a) {
  RECAST_SHARED(Row, row);
  row[threadIndex()] = a.src[gridThread()];
  syncWarp();
  a.dst[gridThread()] = row[threadIndex() ^ 32];
}
/// A shuffle brings lanes together, and orders no memory.
void notOrderedByAShuffle(const FaultyArgs &a) {
  RECAST_SHARED(Row, row);
  row[threadIndex()] = a.src[gridThread()];
  uint32_t other = shuffleXor(a.src[gridThread()], 1);
  a.dst[gridThread()] = row[threadIndex() ^ 1] + other;
}

} // namespace
RECAST_DEVICE_END

// clang-format off
RECAST_KERNELS(faultyKernels,
  RECAST_KERNEL(turn, kThreads, FaultyArgs, turn<true>)
  RECAST_KERNEL(turnWithoutBarrier, kThreads, FaultyArgs, turn<false>)
  RECAST_KERNEL(sum, kThreads, FaultyArgs, sum)
  RECAST_KERNEL(readPastTheEnd, kThreads, FaultyArgs, readPastTheEnd)
  RECAST_KERNEL(writePastTheEnd, kThreads, FaultyArgs, writePastTheEnd)
  RECAST_KERNEL(writeInput, kThreads, FaultyArgs, writeInput)
  RECAST_KERNEL(storeTogether, kThreads, FaultyArgs, storeTogether)
  RECAST_KERNEL(addTogether, kThreads, FaultyArgs, addTogether)
  RECAST_KERNEL(addPlainly, kThreads, FaultyArgs, addPlainly)
  RECAST_KERNEL(storeAcrossBlocks, kThreads, FaultyArgs, storeAcrossBlocks)
  RECAST_KERNEL(leaveBeforeTheBarrier, kThreads, FaultyArgs, leaveBeforeTheBarrier)
  RECAST_KERNEL(differentBarriers, kThreads, FaultyArgs, differentBarriers)
  RECAST_KERNEL(leaveTheWarp, kThreads, FaultyArgs, leaveTheWarp)
  RECAST_KERNEL(misaligned, kThreads, FaultyArgs, misaligned)
  RECAST_KERNEL(readUnwritten, kThreads, FaultyArgs, readUnwritten)
  RECAST_KERNEL(orderedByTheWarp, kThreads, FaultyArgs, orderedByTheWarp)
  RECAST_KERNEL(notOrderedByTheWarp, kThreads, FaultyArgs, notOrderedByTheWarp)
  RECAST_KERNEL(notOrderedByAShuffle, kThreads, FaultyArgs, notOrderedByAShuffle))
// clang-format on

} // namespace recast::cuda
