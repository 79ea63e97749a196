// Kernels that only launches beside a library's call have, as emulated host code and as PTX; and whether the tests of
// this program, run together, have run every entry of the PTX.
#include "runtime/kernels/cuda/source/Fp8.h"
#include "runtime/kernels/cuda/source/Scaling.h"
#include "runtime/kernels/cuda/source/Window.h"
#include "tests/unit/cuda/CudaTest.h"
#include <cstdlib>

namespace recast::cuda::test {
namespace {

/// Both forms of the kernel on copies of `to`, which `place` is the address of; the same bits.
template <typename Args>
Array launched(const std::string &kernel, Args args, void *Args::*place, const Array &to, const Array &from,
               const void *Args::*source) {
  std::vector<Array> results;
  for (bool isPtx : {false, true})
    for (bool reversed : {false, true}) {
      Array &result = results.emplace_back(to);
      args.*place = result.bytes.data();
      emulation::BoundLaunch bound{emulation::find(kernel), 3, 64, {}, {}};
      bound.ranges.push_back({"the output", result.bytes.data(), result.bytes.size(), true, true});
      if (source) {
        args.*source = from.bytes.data();
        bound.ranges.push_back({"the input", from.bytes.data(), from.bytes.size()});
      }
      bound.args.resize(sizeof(Args));
      std::memcpy(bound.args.data(), &args, sizeof(Args));
      Status status = isPtx ? ptx::runBound(bound, reversed) : emulation::runBound(bound, reversed);
      EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.message());
      EXPECT_EQ(result.bytes, results[0].bytes) << kernel << (isPtx ? " as PTX" : " emulated");
    }
  return results[0];
}

TEST(CudaLaunches, AddBias) {
  for (DType type : {DType::F32, DType::F16, DType::BF16}) {
    Array y = randomArray(type, {2, 3, 50}, 1), bias = randomArray(type, {3}, 2);
    Array got = launched<BiasArgs>("add_bias_" + std::string(name(type)),
                                   {.y = nullptr, .bias = nullptr, .planes = 6, .channels = 3, .elems = 50},
                                   &BiasArgs::y, y, bias, &BiasArgs::bias);
    for (size_t i = 0; i < 300; ++i) {
      Array want(type, {1}, {y.get(i) + bias.get(i / 50 % 3)});
      EXPECT_EQ(got.get(i), want.get(0)) << i;
    }
  }
}

TEST(CudaLaunches, RankMaxima) {
  for (DType type : {DType::F32, DType::F64}) {
    Array x = randomArray(type, {4, 70}, 3);
    x.set(70 + 5, std::nan(""));
    Array got = launched<RankMaximaArgs>("rank_maxima_" + std::string(name(type)),
                                         {.x = nullptr, .count = 70, .ranks = 4}, &RankMaximaArgs::x, x, {}, nullptr);
    for (size_t i = 0; i < 70; ++i) {
      double most = std::max({x.get(i), x.get(70 + i), x.get(140 + i), x.get(210 + i)});
      EXPECT_TRUE(i == 5 ? std::isnan(got.get(i)) : got.get(i) == most) << i;
    }
  }
}

/// Scales of 2 matrices of 5 rows and 6 blocks, from one row after the other to one block after the other.
TEST(CudaLaunches, ArrangeScales) {
  for (DType type : {DType::U8, DType::I32})
    for (ScaleLayout layout : {ScaleLayout::BlocksOfRows, ScaleLayout::RowsOfBlocks, ScaleLayout::Tiles}) {
      int64_t ofMatrix = layout == ScaleLayout::BlocksOfRows ? 30 : layout == ScaleLayout::RowsOfBlocks ? 40 : 1024;
      Array from = randomBits(type, {10, 6}, 4), to(type, {2, ofMatrix});
      ArrangeScalesArgs args{.src = nullptr,
                             .dst = nullptr,
                             .count = 2 * ofMatrix,
                             .rows = 5,
                             .blocks = 6,
                             .layout = layout,
                             .rank = 1,
                             .sizes = {{10}},
                             .strides = {{6}},
                             .blockStride = 1};
      Array got = launched("arrange_scales_" + std::to_string(byteSize(type)), args, &ArrangeScalesArgs::dst, to, from,
                           &ArrangeScalesArgs::src);
      for (int64_t i = 0; layout == ScaleLayout::BlocksOfRows && i < 60; ++i)
        EXPECT_EQ(got.get(static_cast<size_t>(i)), from.get(static_cast<size_t>((i / 30 * 5 + i % 5) * 6 + i / 5 % 6)));
    }
}

/// Where all tests run in one process (ctest -R ptx/entries).
class EveryEntry : public testing::Environment {
  void TearDown() override {
    for (const emulation::Kernel &kernel : emulation::kernels())
      if (std::getenv("RECAST_EVERY_ENTRY"))
        EXPECT_TRUE(ptx::entriesRun().contains(kernel.name)) << kernel.name << ": no test runs its PTX";
  }
};
[[maybe_unused]] const testing::Environment *everyEntry = testing::AddGlobalTestEnvironment(new EveryEntry);

} // namespace
} // namespace recast::cuda::test
