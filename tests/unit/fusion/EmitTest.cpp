// Loops by hand: rows and types at their edges.
#include "tests/unit/fusion/FusionTest.h"
#include <cstring>

namespace recast::fusion {
namespace {

/// Casts of f32 rows to narrower types, of every length around a vector's: what lies behind the last element stays.
TEST(EmitTest, WritesOnlyItsElements) {
  constexpr std::byte kGuard{0xa5};
  for (DType type : {DType::BF16, DType::F16, DType::Bool, DType::I8, DType::F32, DType::I64})
    for (int64_t columns : {1, 7, 15, 16, 17, 31, 33, 48, 49})
      for (bool hasRows : {false, true}) {
        RegionBuilder b;
        std::vector<int64_t> dims = {3, columns};
        int x = b.input({DType::F32, dims});
        if (hasRows && columns > 1) // A reduction asks for a loop over rows.
          x = b.minus(x, b.reduce(Op::ReduceMax, x, {1}));
        b.region.outputs = {b.cast(x, type)};
        CompiledRegion region(std::move(b.region));
        auto count = static_cast<size_t>(3 * columns);
        std::vector<float> in(count, 1);
        std::vector<std::byte> out(count * byteSize(type) + 64, kGuard);
        region.run({in.data(), out.data()});
        for (size_t i = count * byteSize(type); i < out.size(); ++i)
          ASSERT_EQ(out[i], kGuard) << name(type) << ", " << columns << " columns, byte " << i;
      }
}

/// A sum's order depends on its shape: not on how ranges are cut.
TEST(EmitTest, SumsDoNotDependOnRanges) {
  RegionBuilder b;
  std::vector<int64_t> dims = {513, 37};
  int x = b.input({DType::F32, dims});
  int columns = b.cast(b.reduce(Op::ReduceSum, x, {0}), DType::F32),
      all = b.cast(b.reduce(Op::ReduceSum, x, {0, 1}), DType::F32);
  b.region.outputs = {columns};
  Region across = b.region;
  b.region.outputs = {all};
  for (const Region &region : {across, b.region}) {
    CompiledRegion compiled(region);
    std::vector<float> in(513 * 37), first(37), second(37);
    for (size_t i = 0; i < in.size(); ++i)
      in[i] = std::sin(static_cast<float>(i)) * 1e3f;
    setThreadCount(1);
    compiled.run({in.data(), first.data()});
    setThreadCount(3);
    compiled.run({in.data(), second.data()});
    EXPECT_EQ(std::memcmp(first.data(), second.data(), first.size() * sizeof(float)), 0);
    setThreadCount(1);
  }
}

/// Rows of every length around a vector's and a group of vectors': each element counts, wherever it is, NaN too.
TEST(EmitTest, RowsSeeEveryElement) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (int64_t columns : {2, 7, 16, 17, 31, 63, 64, 65, 79, 80, 128, 131, 200}) {
    // Row i has something of its own at column i / 2: NaN in even rows, the extreme in odd ones.
    int64_t numRows = 2 * columns;
    RegionBuilder b;
    int x = b.input({DType::F32, {numRows, columns}});
    int most = b.reduce(Op::ReduceMax, x, {1}), least = b.reduce(Op::ReduceMin, b.unary(Op::Neg, x), {1});
    int total = b.cast(b.reduce(Op::ReduceSum, x, {1}), DType::F32);
    b.region.outputs = {most, least, total};
    CompiledRegion region(std::move(b.region));
    auto rows = static_cast<size_t>(numRows), width = static_cast<size_t>(columns);
    std::vector<float> in(rows * width, -1), max(rows), min(rows), sum(rows);
    for (size_t i = 0; i < rows; ++i)
      in[i * width + i / 2] = i % 2 ? 5 : nan;
    region.run({in.data(), max.data(), min.data(), sum.data()});
    for (size_t i = 0; i < rows; ++i) {
      SCOPED_TRACE(testing::Message() << columns << " columns, row " << i);
      if (i % 2) {
        ASSERT_EQ(max[i], 5);
        ASSERT_EQ(min[i], -5);
        ASSERT_EQ(sum[i], 5 - static_cast<float>(columns - 1));
        continue;
      }
      ASSERT_TRUE(std::isnan(max[i]) && std::isnan(min[i]) && std::isnan(sum[i]));
    }
  }
}

TEST(EmitTest, EqualRegionsHaveOneName) {
  Region a = unaryRegion(Op::Exp, 100), b = unaryRegion(Op::Exp, 100), c = unaryRegion(Op::Exp, 101);
  EXPECT_EQ(CompiledRegion(a).name, CompiledRegion(b).name);
  EXPECT_NE(CompiledRegion(a).name, CompiledRegion(c).name);
}

} // namespace
} // namespace recast::fusion
