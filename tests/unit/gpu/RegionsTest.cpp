// Generated kernels for a GPU, executed by the emulation, give the numbers of the CPU's code: bit for bit where nothing
// is summed; sums are of f64 in another order, and rounded to the type. Their PTX gives those of the emulation bit for
// bit, and assembles without spills.
#include "tests/unit/gpu/GpuRegions.h"
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace recast::fusion::test {
namespace {

/// A region that was built, and random inputs for it.
struct Fixture {
  Scheduled s;
  std::vector<Memory> inputs;
};

void fillInputs(Fixture &f, std::mt19937_64 &random, double low = -2, double high = 2) {
  std::uniform_real_distribution<double> uniform(low, high);
  for (const TensorType &type : f.s.region.inputs) {
    Memory memory(type.bytes());
    for (int64_t i = 0; i < type.elems(); ++i) {
      double value = uniform(random);
      setNumber(type.dtype, memory.data(), i,
                type.dtype == DType::Bool ? value > 0
                : isFloat(type.dtype)     ? value
                                          : std::floor(8 * value));
    }
    f.inputs.push_back(std::move(memory));
  }
}

/// Units in the last place of numbers around 1.
double epsilonOf(DType type) {
  switch (type) {
  case DType::F16:
    return 0x1p-10;
  case DType::BF16:
    return 0x1p-7;
  case DType::F32:
    return 0x1p-23;
  case DType::F64:
    return 0x1p-52;
  default:
    return 0;
  }
}

/// `ulps`: 0 compares bits; else of each element, or of `scale` where that is larger.
void compareBoth(Fixture &f, double ulps, double scale = 0) {
  std::vector<Memory> want = runOnCpu(f.s, f.inputs);
  for (bool reversed : {false, true}) {
    std::vector<Memory> got = runKernels(f.s, f.inputs, Form::Emulated, reversed);
    std::vector<Memory> byPtx = runKernels(f.s, f.inputs, Form::Ptx, reversed);
    for (size_t k = 0; k < got.size(); ++k) {
      const Expr &e = f.s.region.values[static_cast<size_t>(f.s.region.outputs[k])];
      for (int64_t i = 0; i < e.elems(); ++i) {
        double a = numberAt(e.type, got[k].data(), i), b = numberAt(e.type, want[k].data(), i);
        bool isEqual = a == b || (std::isnan(a) && std::isnan(b));
        double bound = ulps * epsilonOf(e.type) * std::max(std::fabs(b), scale);
        ASSERT_TRUE(isEqual || std::fabs(a - b) <= bound) << "output " << k << ", element " << i << " of " << e.elems()
                                                          << ": " << a << ", and " << b << " on the CPU";
        size_t bytes = byteSize(e.type), at = static_cast<size_t>(i) * bytes;
        ASSERT_TRUE(std::isnan(a) ? std::isnan(numberAt(e.type, byPtx[k].data(), i))
                                  : std::memcmp(byPtx[k].data() + at, got[k].data() + at, bytes) == 0)
            << "output " << k << ", element " << i << " of " << e.elems() << ": "
            << numberAt(e.type, byPtx[k].data(), i) << " by PTX, and " << a << " by the emulation";
      }
    }
  }
}

bool scheduled(Fixture &f, RegionBuilder &b, std::vector<int> outputs) {
  f.s.region = b.region;
  f.s.region.outputs = std::move(outputs);
  std::string reason;
  return schedule(f.s.region, f.s.program, reason);
}

TEST(GpuRegions, ElementwiseOfEveryKind) {
  std::mt19937_64 random(1);
  for (DType type : {DType::F32, DType::BF16, DType::F16})
    for (std::vector<int64_t> dims : {std::vector<int64_t>{1}, {31}, {3, 257}, {2, 5, 64}}) {
      Fixture f;
      RegionBuilder b;
      int x = b.input({type, dims}), y = b.input({type, dims}), m = b.input({DType::Bool, dims});
      std::vector<int64_t> last(dims.size(), 1), first(dims.size(), 1);
      last.back() = dims.back();
      first[0] = dims[0];
      int row = b.input({type, last}), column = b.input({DType::F32, first});
      int sum = b.plus(b.times(x, y), row);
      int wide = b.times(b.cast(sum, DType::F32), column);
      std::vector<int> outputs = {b.select(m, sum, b.like(sum, -1)), b.cast(b.less(x, y), DType::I32), wide};
      for (Op op : {Op::Neg, Op::Abs, Op::Exp, Op::Sqrt, Op::Tanh, Op::Erf, Op::Sin, Op::Cos, Op::Expm1, Op::Floor,
                    Op::Ceil, Op::Round})
        outputs.push_back(b.unary(op, x));
      outputs.push_back(b.unary(Op::Log, b.plus(b.unary(Op::Abs, y), b.like(y, 0.01))));
      outputs.push_back(b.binary(Op::Max, x, y));
      outputs.push_back(b.over(x, y));
      ASSERT_TRUE(scheduled(f, b, outputs));
      fillInputs(f, random);
      SCOPED_TRACE(std::string(name(type)) + " of " + std::to_string(dims.back()));
      compareBoth(f, 0);
    }
}

TEST(GpuRegions, RowsOfEveryLength) {
  std::mt19937_64 random(2);
  for (int64_t length : {1, 2, 31, 32, 33, 100, 1024, 1025, 3000})
    for (int64_t rows : {1, 7, 40}) {
      Fixture f;
      RegionBuilder b;
      int x = b.input({DType::F32, {rows, length}}), scale = b.input({DType::BF16, {length}});
      int most = b.reduce(Op::ReduceMax, x, {1}), e = b.unary(Op::Exp, b.minus(x, most));
      int softmax = b.over(e, b.cast(b.reduce(Op::ReduceSum, e, {1}), DType::F32));
      int mean = b.cast(b.over(b.reduce(Op::ReduceSum, x, {1}), b.constant(DType::F64, static_cast<double>(length))),
                        DType::F32);
      int centred = b.minus(x, mean), square = b.reduce(Op::ReduceSum, b.times(centred, centred), {1});
      int norm = b.over(centred, b.unary(Op::Sqrt, b.plus(b.cast(square, DType::F32), b.constant(DType::F32, 1e-5))));
      std::vector<int> outputs = {softmax, b.cast(b.times(norm, b.cast(scale, DType::F32)), DType::BF16), mean,
                                  b.reduce(Op::ReduceMin, x, {1})};
      ASSERT_TRUE(scheduled(f, b, outputs));
      fillInputs(f, random);
      SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(length));
      // A sum that rounds to the next f32 changes a quotient by as much; centring takes digits off a mean near zero.
      compareBoth(f, 4, 1);
    }
}

TEST(GpuRegions, SumsAcrossRowsAndOfEverything) {
  std::mt19937_64 random(3);
  for (auto [rows, length] : {std::pair<int64_t, int64_t>{100, 33}, {8, 300}, {1000, 5}, {4, 2000}, {300, 64}}) {
    Fixture f;
    RegionBuilder b;
    int x = b.input({DType::F32, {rows, length}}), y = b.input({DType::BF16, {rows, length}});
    int product = b.times(x, b.cast(y, DType::F32));
    int columns = b.reduce(Op::ReduceSum, product, {0}), all = b.reduce(Op::ReduceSum, b.times(x, x), {0, 1});
    ASSERT_TRUE(scheduled(f, b, {b.cast(columns, DType::F32)})) << rows << " " << length;
    fillInputs(f, random);
    SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(length));
    compareBoth(f, 1);
    Fixture g;
    int factor = b.over(b.constant(DType::F32, 1), b.cast(b.unary(Op::Sqrt, all), DType::F32));
    ASSERT_TRUE(scheduled(g, b, {b.times(x, factor), b.reduce(Op::ReduceMax, product, {0, 1})}));
    fillInputs(g, random);
    compareBoth(g, 2);
  }
}

TEST(GpuRegions, PowersOfBetas) {
  Fixture f;
  RegionBuilder b;
  int x = b.input({DType::F32, {50}}), step = b.input({DType::F64, {}});
  int power = b.binary(Op::Pow, b.constant(DType::F64, 0.999), step);
  int correction = b.cast(b.minus(b.constant(DType::F64, 1), power), DType::F32);
  ASSERT_TRUE(scheduled(f, b, {b.over(x, correction)}));
  std::mt19937_64 random(4);
  for (double at : {1.0, 2.0, 3.0, 1000.0, 123456.0, 2.5}) {
    f.inputs.clear();
    fillInputs(f, random);
    setNumber(DType::F64, f.inputs[1].data(), 0, at);
    compareBoth(f, 1);
  }
}

/// Random element-wise trees with broadcasts and reductions.
TEST(GpuRegions, RandomRegions) {
  std::mt19937_64 random(5);
  auto pick = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  int done = 0;
  for (int trial = 0; trial < 60; ++trial) {
    Fixture f;
    RegionBuilder b;
    int64_t rows = 1 + pick(40), length = 1 + pick(90);
    std::vector<int> values;
    bool hasSums = false;
    const DType types[] = {DType::F32, DType::BF16, DType::F16};
    for (int i = 0; i < 3; ++i) {
      std::vector<int64_t> dims = {pick(3) ? rows : 1, pick(3) ? length : 1};
      if (!i)
        dims = {rows, length};
      values.push_back(b.cast(b.input({types[pick(3)], dims}), DType::F32));
    }
    for (int i = 0; i < 8; ++i) {
      int x = values[static_cast<size_t>(pick(static_cast<int64_t>(values.size())))];
      int y = values[static_cast<size_t>(pick(static_cast<int64_t>(values.size())))];
      switch (pick(7)) {
      case 0:
        values.push_back(b.plus(x, y));
        break;
      case 1:
        values.push_back(b.times(x, y));
        break;
      case 2:
        values.push_back(b.unary(Op::Tanh, x));
        break;
      case 3:
        values.push_back(b.select(b.less(x, y), x, b.like(x, 0.5)));
        break;
      case 4:
        values.push_back(b.cast(b.cast(x, types[pick(3)]), DType::F32));
        break;
      case 5:
        values.push_back(b.reduce(pick(2) ? Op::ReduceMax : Op::ReduceMin, x, {pick(2)}));
        break;
      default:
        hasSums = true;
        values.push_back(
            b.unary(Op::Tanh, b.cast(b.reduce(pick(2) ? Op::ReduceSum : Op::ReduceProd, x, {pick(2)}), DType::F32)));
      }
    }
    if (!scheduled(f, b, {values.back(), values[values.size() - 2]}))
      continue;
    ++done;
    fillInputs(f, random, -1, 1);
    SCOPED_TRACE("trial " + std::to_string(trial));
    // A value may pass a 16-bit type after a sum: then one unit there is 2^-7 of it.
    compareBoth(f, hasSums ? 0x1p17 : 0, 1);
  }
  EXPECT_GE(done, 30);
}

TEST(GpuRegions, PtxAssemblesForEveryArchitecture) {
  RegionBuilder b;
  int x = b.input({DType::F32, {64, 4096}}), g = b.input({DType::BF16, {4096}});
  int e = b.unary(Op::Exp, b.minus(x, b.reduce(Op::ReduceMax, x, {1})));
  int y = b.over(e, b.cast(b.reduce(Op::ReduceSum, e, {1}), DType::F32));
  int power = b.cast(b.binary(Op::Pow, b.constant(DType::F64, 0.9), b.input({DType::F64, {}})), DType::F32);
  int z = b.cast(b.times(b.times(b.unary(Op::Erf, y), power), b.cast(g, DType::F32)), DType::F16);
  Fixture f;
  ASSERT_TRUE(scheduled(f, b, {z, b.cast(b.reduce(Op::ReduceSum, y, {0}), DType::F32), b.unary(Op::Sin, x)}));
  Kernel kernel{&f.s.region, &f.s.program, contentName(f.s.region, f.s.program)};
  auto ptx = compilePtx({&kernel, 1});
  ASSERT_TRUE(ptx) << ptx.message();
  auto path = std::filesystem::temp_directory_path() / ("recast-gpu-test-" + std::to_string(getpid()) + ".ptx");
  std::ofstream(path) << *ptx;
  for (const char *architecture : {"sm_80", "sm_90", "sm_100"}) {
    std::string said = path.string() + ".log";
    std::string command = std::string(RECAST_PTXAS) + " -v -arch=" + architecture + " " + path.string() +
                          " -o /dev/null >" + said + " 2>&1";
    int code = std::system(command.c_str());
    std::ifstream in(said);
    std::string text((std::istreambuf_iterator<char>(in)), {});
    EXPECT_EQ(code, 0) << architecture << ": " << text;
    for (size_t at = 0; (at = text.find(" bytes spill stores", at)) != std::string::npos; ++at)
      EXPECT_EQ(text.substr(text.rfind(' ', at - 1) + 1, at - text.rfind(' ', at - 1) - 1), "0") << text;
    std::printf("%s:\n%s", architecture, text.c_str());
    std::filesystem::remove(said);
  }
  std::filesystem::remove(path);
}

} // namespace
} // namespace recast::fusion::test
