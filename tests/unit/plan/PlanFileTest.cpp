#include "runtime/plan/PlanFile.h"
#include "runtime/compile/Compile.h"
#include "runtime/exec/Executor.h"
#include "runtime/kernels/Parallel.h"
#include "runtime/plan/CheckPlan.h"
#include "runtime/plan/PlanFormat.h"
#include "tests/unit/exec/PlanBuilder.h"
#include "tests/unit/session/SessionTest.h"
#include <random>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace recast {
namespace {

using test::expectError;
using test::readFile;
using test::TempFolder;
using test::writeFile;

const std::filesystem::path kTorch = std::filesystem::path(RECAST_CORPUS) / "torch";

/// A corpus model copied into a folder and compiled there: its plan, and the model's file as it is mapped.
struct Compiled {
  Compiled(const TempFolder &folder, const std::string &name, std::map<std::string, int64_t> dims) {
    path = folder / "model.onnx";
    std::filesystem::copy_file(kTorch / name / "model.onnx", path);
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    auto loaded = Model::load(path);
    EXPECT_TRUE(loaded) << loaded.message();
    model = std::move(*loaded);
    auto compiled = model->compile({.dims = std::move(dims)});
    EXPECT_TRUE(compiled) << compiled.message();
    plan = std::move(*compiled);
  }
  std::string path;
  std::unique_ptr<Model> model;
  std::unique_ptr<Plan> plan;
};

/// Constants as views of a file: what recast-opt --emit=plan hands to the writer.
struct Referring {
  explicit Referring(const TempFolder &folder) : path(folder / "weights.bin") {
    std::vector<float> values(5000);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(i);
    writeFile(path, "head" + test::rawBytes(values));
    file = *MappedFile::open(path);
    test::PlanBuilder b;
    TensorType type{DType::F32, {4000}};
    int x = b.input("x", type), y = b.value("y", type), z = b.value("z", type);
    int w = b.constant<float>("w", type, std::vector<float>(4000)), s = b.state<float>("s", type, {});
    b.step("Add", 14, {x, w}, {y});
    b.step("Add", 14, {y, s}, {z});
    b.output("z", z, s);
    plan = b.build();
    plan->data[w] = {file->bytes().data() + 4, file};
    plan->steps[0].spec.constants[1].data = const_cast<void *>(plan->data[w].bytes);
    // A copy of what is not aligned in the file, as the compiler makes it.
    auto copy = std::make_shared<std::vector<float>>(values.begin() + 1, values.begin() + 4001);
    plan->data[s] = {copy->data(), copy, file->bytes().data() + 8};
    sources = {{path, file->bytes()}};
  }
  std::string path;
  std::shared_ptr<const MappedFile> file;
  std::unique_ptr<Plan> plan;
  std::vector<PlanSource> sources;
};

std::unique_ptr<Plan> readBack(const std::string &path) {
  auto plan = readPlan(path);
  EXPECT_TRUE(plan) << plan.message();
  return plan ? std::move(*plan) : nullptr;
}

void expectEqual(const Plan &got, const Plan &want) {
  EXPECT_EQ(print(got), print(want)); // Buffers, steps, kernels, workspaces, refusals, bodies, outputs.
  EXPECT_EQ(got.metadata, want.metadata);
  EXPECT_EQ(got.threads, want.threads);
  EXPECT_EQ(got.inputs, want.inputs);
  EXPECT_EQ(got.arenaBytes, want.arenaBytes);
  ASSERT_EQ(got.data.size(), want.data.size());
  for (const auto &[buffer, data] : want.data) {
    ASSERT_TRUE(got.data.contains(buffer));
    size_t bytes = want.buffers[static_cast<size_t>(buffer)].type.bytes();
    EXPECT_EQ(std::memcmp(got.data.at(buffer).bytes, data.bytes, bytes), 0) << want.buffers[buffer].name;
  }
  ASSERT_EQ(got.code.size(), want.code.size());
  for (size_t i = 0; i < want.code.size(); ++i) {
    EXPECT_EQ(got.code[i].kind, want.code[i].kind);
    EXPECT_EQ(got.code[i].target, want.code[i].target);
    EXPECT_EQ(got.code[i].bytes, want.code[i].bytes);
  }
  ASSERT_EQ(got.steps.size(), want.steps.size());
  for (size_t i = 0; i < want.steps.size(); ++i) {
    const Step &a = got.steps[i], &b = want.steps[i];
    EXPECT_EQ(a.spec.attrs, b.spec.attrs);
    EXPECT_EQ(a.spec.inputs, b.spec.inputs);
    EXPECT_EQ(a.spec.outputs, b.spec.outputs);
    EXPECT_EQ(a.origin, b.origin);
    EXPECT_EQ(a.inPlace.size(), b.inPlace.size());
    ASSERT_EQ(a.spec.constants.size(), b.spec.constants.size());
    for (size_t j = 0; j < b.spec.constants.size(); ++j) {
      const TensorRef &x = a.spec.constants[j], &y = b.spec.constants[j];
      ASSERT_EQ(x.data == nullptr, y.data == nullptr) << b.spec.name << " input " << j;
      EXPECT_TRUE(std::ranges::equal(x.dims, y.dims));
      if (y.data)
        EXPECT_EQ(std::memcmp(x.data, y.data, y.bytes()), 0);
    }
    ASSERT_EQ(a.bodies.size(), b.bodies.size());
    for (size_t j = 0; j < b.bodies.size(); ++j)
      expectEqual(a.bodies[j], b.bodies[j]);
  }
}

/// The file with its length and its checksum brought up to date: what a mistaken writer would write.
std::string sealed(std::string bytes) {
  uint64_t size = bytes.size();
  std::memcpy(bytes.data() + offsetof(plan_format::Header, fileBytes), &size, sizeof size);
  uint64_t checksum = XXH3_64bits(bytes.data(), bytes.size() - sizeof checksum);
  std::memcpy(bytes.data() + bytes.size() - sizeof checksum, &checksum, sizeof checksum);
  return bytes;
}

/// From the heap, so that AddressSanitizer sees an access beyond the bytes.
Result<std::unique_ptr<Plan>> readBytes(const std::string &bytes, const std::string &path) {
  auto *memory = static_cast<char *>(std::aligned_alloc(64, (bytes.size() + 63) / 64 * 64));
  std::shared_ptr<const void> owner(memory, [](const void *p) { std::free(const_cast<void *>(p)); });
  std::memcpy(memory, bytes.data(), bytes.size());
  return readPlan(test::bytesOf({memory, bytes.size()}), owner, path);
}

TEST(PlanFile, KeepsEverything) {
  TempFolder folder;
  Compiled model(folder, "ctrl_scan", {});
  model.plan->metadata["key"] = "value";
  model.plan->code = {{CodeObject::SharedObject, "x86-64-v3",
                       std::string("\x7f"
                                   "ELF\0rest",
                                   9)},
                      {CodeObject::Ptx, "sm_90", ".version 8.5"}};
  if (!checkTarget("x86-64-v3").ok())
    model.plan->code.erase(model.plan->code.begin());
  ASSERT_TRUE(writePlan(*model.plan, folder / "x.plan", {}).ok());
  auto plan = readBack(folder / "x.plan");
  ASSERT_TRUE(plan);
  expectEqual(*plan, *model.plan);
  bool hasBody = std::ranges::any_of(plan->steps, [](const Step &step) { return !step.bodies.empty(); });
  EXPECT_TRUE(hasBody) << "the model of this test has a loop";
  EXPECT_EQ(folder.list(), (std::vector<std::string>{"model.onnx", "x.plan"}));
}

TEST(PlanFile, RunsAsThePlanInMemory) {
  TempFolder folder;
  auto want = test::linearStepPlan(2);
  ASSERT_TRUE(writePlan(*want, folder / "x.plan", {}).ok());
  auto got = readBack(folder / "x.plan");
  ASSERT_TRUE(got);
  for (Plan *plan : {want.get(), got.get()}) {
    auto executor = Executor::create(*plan);
    ASSERT_TRUE(executor) << executor.message();
    std::vector<float> x = {1, 2, 3, 4, 5, 6};
    std::memcpy((*executor)->tensor((*executor)->find("x")).data, x.data(), x.size() * sizeof(float));
    for (int i = 0; i < 3; ++i)
      ASSERT_TRUE((*executor)->run().ok());
    const float *w = (*executor)->tensor((*executor)->find("w")).as<float>();
    EXPECT_EQ(std::vector<float>(w, w + 3), (std::vector<float>{1 - 3 * 0.625f, 2 - 3 * 0.875f, 3 - 3 * 1.125f}));
  }
}

/// A step for which this machine has another kernel than the one that compiled the plan.
TEST(PlanFile, SaysHowAForeignPlanWouldRun) {
  TempFolder folder;
  auto plan = test::linearStepPlan(2);
  plan->steps[0].library = "onednn";
  plan->threads = threadCount();
  ASSERT_TRUE(writePlan(*plan, folder / "here.plan", {}).ok());
  plan->threads = threadCount() + 1;
  ASSERT_TRUE(writePlan(*plan, folder / "there.plan", {}).ok());
  std::string threads = "--threads=" + std::to_string(plan->threads);
  auto here = readBack(folder / "here.plan"), there = readBack(folder / "there.plan");
  Status status = Executor::create(*here).status();
  expectError(status, {"'Mul.0'", "onednn", "reference", "compile the model here"});
  EXPECT_EQ(status.message().find("--threads"), std::string::npos) << status.message();
  expectError(Executor::create(*there).status(), {"'Mul.0'", "compile the model here", threads});
}

TEST(PlanFile, RefersToLargeDataAndMovesWithIt) {
  TempFolder folder;
  Referring model(folder);
  std::filesystem::create_directory(folder / "plans");
  ASSERT_TRUE(writePlan(*model.plan, folder / "plans/x.plan", model.sources).ok());
  EXPECT_LT(std::filesystem::file_size(folder / "plans/x.plan"), 4000u);
  std::string bytes = readFile(folder / "plans/x.plan");
  EXPECT_NE(bytes.find("../weights.bin"), std::string::npos);
  EXPECT_EQ(bytes.find(folder.path.string()), std::string::npos) << "no absolute paths";
  auto plan = readBack(folder / "plans/x.plan");
  ASSERT_TRUE(plan);
  expectEqual(*plan, *model.plan);

  TempFolder other;
  std::filesystem::rename(folder / "plans", other / "elsewhere");
  std::filesystem::rename(folder / "weights.bin", other / "weights.bin");
  plan = readBack(other / "elsewhere/x.plan");
  ASSERT_TRUE(plan);
  expectEqual(*plan, *model.plan);
  std::filesystem::create_symlink(other / "elsewhere/x.plan", folder / "link.plan");
  EXPECT_TRUE(readBack(folder / "link.plan"));
}

TEST(PlanFile, RefusesDataThatChanged) {
  TempFolder folder;
  Referring model(folder);
  ASSERT_TRUE(writePlan(*model.plan, folder / "x.plan", model.sources).ok());
  std::string weights = readFile(model.path);
  std::string other = weights;
  other[9] ^= 1;
  writeFile(model.path, other);
  expectError(readPlan(folder / "x.plan").status(), {"x.plan", "weights.bin", "'w'", "changed", "compile"});
  writeFile(model.path, weights + "more");
  expectError(readPlan(folder / "x.plan").status(), {"weights.bin", "20008 bytes instead of 20004"});
  std::filesystem::remove(model.path);
  expectError(readPlan(folder / "x.plan").status(), {"x.plan", "weights.bin", "move together"});
  writeFile(model.path, weights);
  EXPECT_TRUE(readBack(folder / "x.plan"));
}

TEST(PlanFile, NeverReplacesWhatItRefersTo) {
  TempFolder folder;
  Referring model(folder);
  expectError(writePlan(*model.plan, model.path, model.sources), {"weights.bin", "cannot replace"});
  EXPECT_EQ(std::filesystem::file_size(model.path), 20004u);
}

TEST(PlanFile, ZerosTakeNoRoom) {
  TempFolder folder;
  test::PlanBuilder b;
  TensorType type{DType::F32, {1 << 20}};
  int s = b.state<float>("s", type, std::vector<float>(1 << 20)), y = b.value("y", type);
  b.step("Neg", 13, {s}, {y});
  b.output("y", y, s);
  auto plan = b.build();
  ASSERT_TRUE(writePlan(*plan, folder / "x.plan", {}).ok());
  EXPECT_LT(std::filesystem::file_size(folder / "x.plan"), 2000u);
  auto got = readBack(folder / "x.plan");
  ASSERT_TRUE(got);
  expectEqual(*got, *plan);
}

TEST(PlanFile, RefusesForeignFiles) {
  TempFolder folder;
  ASSERT_TRUE(writePlan(*test::linearStepPlan(2), folder / "x.plan", {}).ok());
  std::string bytes = readFile(folder / "x.plan");
  auto refusal = [&](std::string text) { return readBytes(text, "x.plan").status(); };
  for (const std::string &text : {std::string(), std::string("ONNX"), readFile((kTorch / "mlp/model.onnx").string())})
    expectError(refusal(text), {"'x.plan'", "no compiled plan", "--emit=plan"});
  std::string newer = bytes;
  newer[offsetof(plan_format::Header, version)] = plan_format::kVersion + 1;
  expectError(refusal(newer), {"version " + std::to_string(plan_format::kVersion + 1), "compile the model again"});
  std::string turned = bytes;
  std::reverse(turned.begin() + 8, turned.begin() + 12);
  expectError(refusal(turned), {"byte order"});
  expectError(readPlan(folder / "none.plan").status(), {"none.plan"});
}

TEST(PlanFile, EveryFlippedBitAndEveryTruncationIsDamage) {
  TempFolder folder;
  Compiled model(folder, "ctrl_scan", {});
  auto file = *MappedFile::open(model.path);
  PlanSource source{model.path, file->bytes()};
  ASSERT_TRUE(writePlan(*model.plan, folder / "x.plan", {&source, 1}).ok());
  std::string bytes = readFile(folder / "x.plan");
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] ^= static_cast<char>(1 << i % 8);
    EXPECT_FALSE(readBytes(damaged, folder / "x.plan")) << "byte " << i;
    EXPECT_FALSE(readBytes(bytes.substr(0, i), folder / "x.plan")) << i << " bytes";
  }
  EXPECT_FALSE(readBytes(bytes + '\0', folder / "x.plan"));
}

/// Damage that the checksum does not show: every number must be checked. What still reads is a plan that prints.
TEST(PlanFile, BelievesNoNumber) {
  TempFolder folder;
  Compiled model(folder, "ctrl_scan", {});
  ASSERT_TRUE(writePlan(*model.plan, folder / "x.plan", {}).ok());
  Referring referring(folder);
  ASSERT_TRUE(writePlan(*referring.plan, folder / "r.plan", referring.sources).ok());
  std::mt19937 random(1);
  size_t refused = 0, read = 0;
  auto attempt = [&](const std::string &bytes) {
    auto plan = readBytes(sealed(bytes), folder / "x.plan");
    ++(plan ? read : refused);
    EXPECT_FALSE(plan ? print(**plan).empty() : plan.message().empty());
  };
  for (const char *name : {"x.plan", "r.plan"}) {
    std::string bytes = readFile(folder / name);
    for (size_t i = 24; i + 8 < bytes.size(); ++i) {
      std::string changed = bytes;
      for (int value : {0x00, 0x7f, 0xff, static_cast<int>(random() & 0xff)}) {
        changed[i] = static_cast<char>(value);
        attempt(changed);
      }
      attempt(bytes.substr(0, i) + bytes.substr(i + 1));
      if (i % 8 == 0)
        attempt(bytes.substr(0, i) + std::string(8, '\xff') + bytes.substr(i + 8));
      if (i > sizeof(plan_format::Header))
        attempt(bytes.substr(0, i) + std::string(8, '\0'));
    }
  }
  EXPECT_GT(refused, 1000u);
  EXPECT_GT(read, 100u) << "names and offsets may differ without harm";
}

TEST(CheckTarget, KnowsThisMachine) {
  expectError(checkTarget("x86-64-v9"), {"'x86-64-v9'", "compile the model here"});
  expectError(checkTarget("z80"), {"'z80'", "compile the model here"});
}

} // namespace
} // namespace recast
