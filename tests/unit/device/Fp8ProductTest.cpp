// Products of 8-bit floats: every way in which scales may lie, against sums that are written out, and the rules of
// cuBLASLt broken one by one.
#include "runtime/device/Checking.h"
#include "runtime/kernels/cuda/table/KernelTable.h"
#include "runtime/plan/Float8.h"
#include "tests/unit/device/DeviceTest.h"
#include <cmath>
#include <gmock/gmock.h>

namespace recast::device {
namespace {

using cuda::ScaleMode;
using test::changeMatmul;
using testing::HasSubstr;
using Dims = std::vector<int64_t>;

int64_t tilesOf(int64_t size, int64_t edge) { return edge ? (size + edge - 1) / edge : 1; }

/// An operand [.., rows, k], its scales over a grid of tiles, and the values that they stand for.
struct Quantised {
  DType type;
  Dims dims, tile; ///< Without tiles: one scale.
  DType scaleType = DType::F32;
  bool isGridReversed = false; ///< The grid's first dimension is its innermost in memory.
  Dims gridDims = {}, strides = {};
  std::vector<uint8_t> values = {};
  std::vector<std::byte> scales = {};
  std::vector<double> meaning = {};

  void fill(uint64_t seed) {
    gridDims.assign(dims.size(), 1);
    strides.assign(dims.size(), 0);
    for (size_t d = 0; d < tile.size(); ++d)
      gridDims[d] = tilesOf(dims[d], tile[d]);
    int64_t numScales = 1;
    for (size_t i = dims.size(); i-- > 0;) {
      size_t d = isGridReversed ? dims.size() - 1 - i : i;
      strides[d] = numScales;
      numScales *= gridDims[d];
    }
    scales.resize(static_cast<size_t>(numScales) * byteSize(scaleType));
    auto next = [&] { return seed = seed * 6364136223846793005u + 1442695040888963407u, seed >> 40; };
    for (int64_t i = 0; i < numScales; ++i) {
      int exponent = static_cast<int>(next() % 7) - 3;
      if (scaleType == DType::F8E8M0) {
        scales[static_cast<size_t>(i)] = static_cast<std::byte>(127 + exponent);
      } else {
        float scale = std::ldexp(1.0f + static_cast<float>(next() % 8) / 8, exponent);
        std::memcpy(scales.data() + i * 4, &scale, 4);
      }
    }
    int64_t count = 1;
    for (int64_t dim : dims)
      count *= dim;
    for (int64_t i = 0; i < count; ++i) {
      // Magnitudes around 1, both signs: the exponent's bits are near their middle.
      uint64_t random = next();
      values.push_back(type == DType::F8E4M3FN ? static_cast<uint8_t>(0x30 | (random & 0x8f))
                                               : static_cast<uint8_t>(0x38 | (random & 0x87)));
      float value = type == DType::F8E4M3FN ? static_cast<float>(Float8E4M3FN::fromBits(values.back()))
                                            : static_cast<float>(Float8E5M2::fromBits(values.back()));
      int64_t at = 0;
      for (int64_t rest = i, d = static_cast<int64_t>(dims.size()); d-- > 0; rest /= dims[static_cast<size_t>(d)]) {
        auto dim = static_cast<size_t>(d);
        int64_t edge = dim < tile.size() && tile[dim] ? tile[dim] : dims[dim];
        at += rest % dims[dim] / edge * strides[dim];
      }
      meaning.push_back(static_cast<double>(value) * scaleAt(at));
    }
  }
  double scaleAt(int64_t at) const {
    if (scaleType == DType::F8E8M0)
      return std::ldexp(1.0, static_cast<int>(scales[static_cast<size_t>(at)]) - 127);
    float scale;
    std::memcpy(&scale, scales.data() + at * 4, 4);
    return static_cast<double>(scale);
  }
  int64_t rows() const { return dims[dims.size() - 2]; }
  int64_t k() const { return dims.back(); }
  Dims batch() const { return Dims(dims.begin(), dims.end() - 2); }
};

/// Which matrix of an operand belongs to one of the result.
int64_t matrixOf(const Dims &batch, const Dims &whole, int64_t index) {
  int64_t matrix = 0, stride = 1;
  for (size_t i = 0; i < whole.size(); ++i) {
    int64_t at = index % whole[whole.size() - 1 - i];
    index /= whole[whole.size() - 1 - i];
    if (i >= batch.size())
      continue;
    int64_t size = batch[batch.size() - 1 - i];
    matrix += (size == 1 ? 0 : at) * stride;
    stride *= size;
  }
  return matrix;
}

struct Product {
  Quantised a, b;
  Dims batch = {};
  Plan plan = {};

  void build(double alpha = 1) {
    a.fill(1), b.fill(2);
    plan.device = "cuda";
    Dims dims = batch;
    dims.insert(dims.end(), {a.rows(), b.rows()});
    auto add = [&](const char *name, DType type, Dims dims, Place place) {
      plan.buffers.push_back({name, {type, std::move(dims)}, place, 0});
    };
    for (auto [x, name, scale] :
         {std::tuple<Quantised *, const char *, const char *>{&a, "a", "scales of a"}, {&b, "b", "scales of b"}}) {
      add(name, x->type, x->dims, Place::Input);
      add(scale, x->scaleType, x->gridDims, Place::Input);
    }
    add("d", DType::F32, dims, Place::Arena);
    plan.inputs = {0, 1, 2, 3};
    Step step;
    step.spec = {"product", "recast", "fp8_product", 1, {}, {}, {plan.buffers[4].type}, {}};
    for (const auto &[x, name] : {std::pair<Quantised *, std::string>{&a, "a"}, {&b, "b"}})
      if (!x->tile.empty()) {
        step.spec.attrs.set("tile_" + name, x->tile);
        step.spec.attrs.set("strides_" + name, x->strides);
      }
    step.spec.attrs.set("alpha", static_cast<float>(alpha));
    for (size_t i = 0; i < 4; ++i)
      step.spec.inputs.push_back(plan.buffers[i].type);
    step.spec.constants.resize(4);
    step.library = "cublaslt";
    step.inputs = {0, 1, 2, 3}, step.outputs = {4};
    cuda::Program program;
    std::string refusal;
    ASSERT_TRUE(cuda::compile(step.spec, program, refusal)) << refusal;
    step.workspaceBytes = program.workspaceBytes;
    step.workspaceOffset = (plan.buffers[4].type.bytes() + 63) / 64 * 64;
    plan.arenaBytes = step.workspaceOffset + step.workspaceBytes;
    plan.steps.push_back(std::move(step));
    plan.outputs = {{"d", 4, -1}};
  }

  /// "" where all goes well.
  std::string run(
      CheckingDevice &device, std::vector<float> &d,
      const std::function<void(DeviceExecutor &)> &change = [](DeviceExecutor &) {}) const {
    auto executor = DeviceExecutor::create(plan, device, {.streams = 2});
    if (!executor)
      return executor.message();
    change(**executor);
    const void *inputs[] = {a.values.data(), a.scales.data(), b.values.data(), b.scales.data()};
    for (int i = 0; i < 4; ++i)
      if (Status status = (*executor)->write(i, inputs[i]); !status.ok())
        return status.message();
    if (Status status = (*executor)->run(); !status.ok())
      return status.message();
    d.resize(static_cast<size_t>(plan.buffers[4].type.elems()));
    Status status = (*executor)->read(4, d.data());
    return status.ok() ? "" : status.message();
  }
};

/// Sums in double, rounded once, as the stand-in's: equal but for the order in which scales are multiplied.
void expectProduct(Product product, int architecture, double alpha = 1) {
  product.build(alpha);
  CheckingDevice device(architecture);
  std::vector<float> d;
  ASSERT_EQ(product.run(device, d), "");
  int64_t m = product.a.rows(), n = product.b.rows(), k = product.a.k(), matrices = 1;
  for (int64_t dim : product.batch)
    matrices *= dim;
  for (int64_t matrix = 0; matrix < matrices; ++matrix)
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0, size = 0;
        for (int64_t l = 0; l < k; ++l) {
          double x =
              product.a
                  .meaning[static_cast<size_t>((matrixOf(product.a.batch(), product.batch, matrix) * m + i) * k + l)];
          double y =
              product.b
                  .meaning[static_cast<size_t>((matrixOf(product.b.batch(), product.batch, matrix) * n + j) * k + l)];
          sum += x * y, size += std::fabs(x * y);
        }
        ASSERT_NEAR(static_cast<double>(d[static_cast<size_t>((matrix * m + i) * n + j)]), alpha * sum,
                    alpha * size * 0x1p-23)
            << matrix << " " << i << " " << j;
      }
}

constexpr DType kE4 = DType::F8E4M3FN, kE5 = DType::F8E5M2;

TEST(Float8Products, OneScaleATensor) {
  expectProduct({{kE4, {48, 80}, {}}, {kE5, {16, 80}, {}}}, 89, 0.5);
  expectProduct({{kE5, {2, 3, 16, 32}, {}}, {kE4, {3, 32, 32}, {}}, {2, 3}}, 90);
  expectProduct({{kE4, {2, 3, 16, 32}, {0, 0, 0, 0}}, {kE4, {48, 32}, {0, 0}}, {2, 3}}, 100);
}

TEST(Float8Products, OneScaleARow) {
  expectProduct({{kE4, {48, 80}, {1, 0}}, {kE4, {16, 80}, {1, 0}}}, 90);
  expectProduct({{kE4, {48, 80}, {1, 0}}, {kE4, {2, 16, 80}, {1, 1, 0}}, {2}}, 90);
  expectProduct({{kE4, {2, 16, 48}, {1, 1, 0}, DType::F32, true}, {kE4, {32, 48}, {1, 0}}, {2}}, 90);
}

TEST(Float8Products, OneScaleFor128) {
  expectProduct({{kE4, {48, 400}, {1, 128}}, {kE4, {144, 400}, {128, 128}}}, 90);
  expectProduct({{kE4, {272, 256}, {128, 128}, DType::F32, true}, {kE4, {16, 256}, {1, 128}, DType::F32, true}}, 90);
  expectProduct({{kE4, {2, 16, 144}, {1, 1, 128}}, {kE4, {3, 2, 32, 144}, {1, 1, 1, 128}}, {3, 2}}, 90);
  // A tile that is larger than its tensor.
  expectProduct({{kE4, {16, 48}, {1, 128}}, {kE4, {32, 48}, {128, 128}}}, 90);
}

TEST(Float8Products, OneScaleFor32) {
  expectProduct({{kE4, {144, 160}, {1, 32}, DType::F8E8M0}, {kE4, {272, 160}, {1, 32}, DType::F8E8M0}}, 100);
  expectProduct({{kE4, {2, 2, 48, 64}, {1, 1, 1, 32}, DType::F8E8M0, true},
                 {kE5, {2, 2, 16, 64}, {1, 1, 1, 32}, DType::F8E8M0},
                 {2, 2}},
                100);
}

TEST(Float8Products, OtherTypesAreRefused) {
  Product product{{kE4, {48, 80}, {}}, {kE5, {16, 80}, {}}};
  product.build();
  StepSpec spec = product.plan.steps[0].spec;
  spec.inputs[0].dtype = spec.inputs[2].dtype = DType::I8;
  cuda::Program program;
  std::string refusal;
  EXPECT_FALSE(cuda::compile(spec, program, refusal));
  EXPECT_EQ(refusal, "i8 is not supported");
}

TEST(Float8Products, FaultsAreNamed) {
  struct Case {
    Product product;
    int architecture;
    void (*breakIt)(cuda::MatmulArgs &);
    const char *says;
  };
  Product rows{{kE4, {48, 80}, {1, 0}}, {kE4, {16, 80}, {1, 0}}};
  Product blocks{{kE4, {48, 400}, {1, 128}}, {kE4, {144, 400}, {128, 128}}};
  Product micro{{kE4, {144, 160}, {1, 32}, DType::F8E8M0}, {kE4, {272, 160}, {1, 32}, DType::F8E8M0}};
  Product whole{{kE4, {48, 80}, {}}, {kE5, {16, 80}, {}}};
  for (const Case &c :
       {Case{whole, 89, [](auto &a) { a.pitchA += 16; }, "operand a of 48 rows with leading dimension 96 goes beyond"},
        Case{whole, 89, [](auto &a) { a.transB = false, a.pitchB = 16; }, "take the TN layout only"},
        Case{whole, 89, [](auto &a) { a.scaleModeA = a.scaleModeB = ScaleMode::OuterVector; },
             "8-bit products with one scale a row need sm_90"},
        Case{whole, 90, [](auto &a) { a.scaleModeA = a.scaleModeB = ScaleMode::OuterVector; },
             "the scales of a have 192 bytes in their mode and go beyond their buffer"},
        Case{whole, 80, [](auto &) {}, "8-bit products need sm_89 or later"},
        Case{whole, 89, [](auto &a) { a.scaleA = nullptr; }, "the scales of a"},
        Case{rows, 100, [](auto &) {}, "8-bit products with one scale a row need sm_90"},
        Case{rows, 90, [](auto &a) { a.scaleModeA = ScaleMode::Scalar; },
             "one scale a tensor of a does not go with one"},
        Case{blocks, 90, [](auto &a) { a.scaleModeA = ScaleMode::Block128; }, "does not go with"},
        Case{blocks, 90, [](auto &a) { a.scaleModeB = ScaleMode::Vector128; }, "the scales of b have 2304 bytes"},
        Case{blocks, 90, [](auto &a) { a.scaleB = static_cast<const char *>(a.scaleB) + 4; }, "aligned to 16 bytes"},
        Case{micro, 90, [](auto &) {}, "one e8m0 scale for 32 elements need sm_100 or later"},
        Case{micro, 100, [](auto &a) { a.k = 144; }, "k is 144, no multiple of the 32 elements of a scale"}}) {
    Product product = c.product;
    product.build();
    CheckingDevice device(c.architecture);
    std::vector<float> d;
    std::string fault = product.run(device, d, [&](DeviceExecutor &executor) { changeMatmul(executor, c.breakIt); });
    EXPECT_THAT(fault, testing::AllOf(HasSubstr("node 'product' (fp8_product)"), HasSubstr(c.says)));
  }
}

/// A right 8-bit product, from which each rule is broken.
cuda::MatmulArgs float8Product() {
  cuda::MatmulArgs args{};
  args.m = 32, args.n = 16, args.k = 48, args.batch = 1;
  args.pitchA = args.pitchB = 48, args.pitchD = 16;
  args.typeA = DType::F8E4M3FN, args.typeB = DType::F8E5M2, args.typeD = DType::BF16;
  args.transB = true, args.alpha = 1;
  return args;
}

TEST(Float8Products, RulesOfCublasLt) {
  EXPECT_EQ(brokenRule(float8Product()), "");
  struct Case {
    void (*breakIt)(cuda::MatmulArgs &);
    const char *says;
  };
  for (const Case &c :
       {Case{[](auto &a) { a.transB = false, a.pitchB = 16; }, "TN layout"},
        Case{[](auto &a) { a.transA = true; }, "TN layout"}, Case{[](auto &a) { a.k = 40; }, "multiples of 16"},
        Case{[](auto &a) { a.pitchA = 56; }, "multiples of 16 bytes"},
        Case{[](auto &a) { a.typeA = DType::F8E5M2; }, "two operands of f8e5m2"},
        Case{[](auto &a) { a.typeB = DType::BF16; }, "operands of f8e4m3fn and bf16"},
        Case{[](auto &a) { a.a = reinterpret_cast<void *>(8); }, "aligned to 16 bytes"},
        Case{[](auto &a) { a.workspaceBytes = 4, a.workspace = reinterpret_cast<void *>(8); },
             "workspace is not aligned"},
        Case{[](auto &a) { a.batch = 2, a.strideD = 16; }, "results of a batch overlap"},
        Case{[](auto &a) { a.m = 0; }, "an empty product"}}) {
    cuda::MatmulArgs args = float8Product();
    c.breakIt(args);
    EXPECT_THAT(brokenRule(args), HasSubstr(c.says));
  }
}

} // namespace
} // namespace recast::device
