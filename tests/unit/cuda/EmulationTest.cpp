// The emulation runs right kernels right, and names the fault of wrong ones.
#include "tests/unit/cuda/FaultyKernels.h"
#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <vector>

namespace recast::cuda::emulation {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Memory {
  std::vector<uint32_t> src, dst;
  explicit Memory(size_t elems) : src(elems), dst(elems) {
    for (size_t i = 0; i < elems; ++i)
      src[i] = static_cast<uint32_t>(i * i + 1);
  }
};

/// "" where the launch succeeds.
std::string run(std::string_view name, Memory &memory, int64_t blocks = 2, int threads = 64, bool reversed = false) {
  auto kernel = std::ranges::find(faultyKernels(), name, &Kernel::name);
  EXPECT_NE(kernel, faultyKernels().end()) << name;
  FaultyArgs args{memory.src.data(), memory.dst.data()};
  Range ranges[] = {{"the input", memory.src.data(), memory.src.size() * 4, false, true},
                    {"the output", memory.dst.data(), memory.dst.size() * 4, true, true}};
  Status status = launch(*kernel, blocks, threads, std::as_bytes(std::span(&args, 1)), ranges, reversed);
  return status.ok() ? "" : status.message();
}

TEST(Emulation, SharedMemoryAndBarriers) {
  for (bool reversed : {false, true}) {
    Memory memory(128);
    ASSERT_EQ(run("turn", memory, 2, 64, reversed), "");
    for (size_t i = 0; i < 128; ++i)
      EXPECT_EQ(memory.dst[i], memory.src[i / 64 * 64 + 63 - i % 64]);
  }
}

TEST(Emulation, ShufflesAndBallots) {
  for (bool reversed : {false, true}) {
    Memory memory(128);
    ASSERT_EQ(run("sum", memory, 2, 64, reversed), "");
    for (size_t i = 0; i < 128; ++i) {
      uint32_t sum = 0;
      for (size_t j = i / 32 * 32; j < i / 32 * 32 + 32; ++j)
        sum += memory.src[j];
      EXPECT_EQ(memory.dst[i], sum + 7);
    }
  }
}

TEST(Emulation, AtomicsOfAllThreadsAreNoRace) {
  Memory memory(128);
  ASSERT_EQ(run("addTogether", memory), "");
  EXPECT_EQ(memory.dst[0], 128u);
}

TEST(Emulation, BarriersOfAWarpOrderTheWarp) {
  Memory memory(128);
  EXPECT_EQ(run("orderedByTheWarp", memory), "");
  EXPECT_THAT(run("notOrderedByTheWarp", memory), HasSubstr("shared memory"));
  EXPECT_THAT(run("notOrderedByAShuffle", memory), HasSubstr("shared memory: nothing orders the two accesses"));
}

TEST(Emulation, FaultsAreNamed) {
  struct Case {
    const char *kernel, *says;
  };
  for (const Case &c : {Case{"turnWithoutBarrier", "a load of shared memory that no thread has written"},
                        Case{"readPastTheEnd", "thread 63: a load of 4 bytes outside of every buffer"},
                        Case{"writePastTheEnd", "thread 63: a store of 4 bytes outside of every buffer"},
                        Case{"writeInput", "a store of 4 bytes at byte 0 of the input, which is only read"},
                        Case{"storeTogether", "thread 1: a race with thread 0 of block 0 on the output"},
                        Case{"addPlainly", "a race with thread"},
                        Case{"storeAcrossBlocks", "block 1, thread 0: a race with thread 0 of block 0 on the output"},
                        Case{"leaveBeforeTheBarrier", "that thread 7 never reaches: it has ended"},
                        Case{"differentBarriers", "does not reach"},
                        Case{"leaveTheWarp", "waits in a warp operation that thread 9 never reaches"},
                        Case{"misaligned", "thread 1: a load of 16 bytes at byte 4 of the input is misaligned"},
                        Case{"readUnwritten", "thread 0: a load of shared memory that no thread has written"}}) {
    Memory memory(128);
    EXPECT_THAT(run(c.kernel, memory), AllOf(HasSubstr("kernel " + std::string(c.kernel)), HasSubstr(c.says)));
    // What one launch got wrong the next does not inherit.
    EXPECT_EQ(run("turn", memory), "");
  }
}

TEST(Emulation, LaunchShapes) {
  Memory memory(128);
  EXPECT_THAT(run("turn", memory, 1, 128), HasSubstr("no multiple of 32 up to 64"));
  EXPECT_THAT(run("turn", memory, 1, 33), HasSubstr("no multiple of 32"));
  EXPECT_THAT(run("turn", memory, 0, 64), HasSubstr("a grid of 0 blocks"));
}

} // namespace
} // namespace recast::cuda::emulation
