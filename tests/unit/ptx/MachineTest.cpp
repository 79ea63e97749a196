// The machine that executes PTX runs right programs right, and names the fault of wrong ones.
#include "tests/ptx/Machine.h"
#include "runtime/kernels/cuda/table/Ptx.h"
#include "tests/ptx/PtxProgram.h"
#include <cmath>
#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>

namespace recast::ptx {
namespace {

using testing::HasSubstr;

/// An entry `f` of two pointers, %rd1 to 64 elements and %rd2 to room for 64: thread i has elements i of both, of
/// 4 bytes, at %rd3 and %rd4, and its number in %r1.
std::string program(const std::string &body, const std::string &before = "") {
  return ".version 7.8\n.target sm_80\n.address_size 64\n" + before + R"(
.visible .entry f(.param .u64 .ptr .align 1 f_param_0, .param .u64 f_param_1) .maxntid 64
{
  .reg .pred %p<8>; .reg .b16 %rs<8>; .reg .b32 %r<16>; .reg .b64 %rd<16>;
  ld.param.b64 %rd1, [f_param_0];
  ld.param.b64 %rd2, [f_param_1];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd5, %r1, 4;
  add.s64 %rd3, %rd1, %rd5;
  add.s64 %rd4, %rd2, %rd5;
)" + body +
         "\n  ret;\n}\n";
}

struct Data {
  std::array<uint32_t, 64> in{}, out{};
};

/// "" where it succeeds.
std::string execute(const std::string &text, Data &data, int threads = 64, bool reversed = false) {
  auto module = Module::parse(text);
  if (!module)
    return module.message();
  std::array<const void *, 2> args = {data.in.data(), data.out.data()};
  Memory memory;
  memory.add(data.in.data(), sizeof(data.in), false);
  memory.add(data.out.data(), sizeof(data.out));
  Status status =
      launch(**module, *(*module)->entry("f"), {1, threads, reversed}, std::as_bytes(std::span(args)), memory);
  return status.ok() ? "" : status.message();
}

TEST(Machine, ReversesThroughSharedMemory) {
  for (bool reversed : {false, true}) {
    Data data;
    for (uint32_t i = 0; i < 64; ++i)
      data.in[i] = i * i;
    ASSERT_EQ(execute(program(R"(
  .shared .align 4 .b8 tile[256];
  ld.global.b32 %r2, [%rd3];
  mov.b64 %rd6, tile;
  add.s64 %rd7, %rd6, %rd5;
  st.shared.b32 [%rd7], %r2;
  bar.sync 0;
  sub.s64 %rd8, %rd6, %rd5;
  ld.shared.b32 %r3, [%rd8+252];
  st.global.b32 [%rd4], %r3;)"),
                      data, 64, reversed),
              "");
    for (uint32_t i = 0; i < 64; ++i)
      EXPECT_EQ(data.out[i], (63 - i) * (63 - i));
  }
}

TEST(Machine, ReadsAllModules) {
  size_t entries = 0;
  for (const cuda::PtxModule &own : cuda::ptxModules()) {
    auto module = Module::parse(own.text);
    ASSERT_TRUE(module) << own.name << ": " << module.message();
    for (const auto &[name, function] : (*module)->functions)
      entries += function->isEntry;
  }
  EXPECT_EQ(entries, cuda::emulation::kernels().size());
  for (const cuda::emulation::Kernel &kernel : cuda::emulation::kernels()) {
    auto module = moduleOf(kernel.name);
    ASSERT_TRUE(module) << module.message();
    EXPECT_EQ((*module)->entry(kernel.name)->inputBytes, kernel.argBytes) << kernel.name;
    EXPECT_EQ((*module)->entry(kernel.name)->maxThreads, static_cast<uint32_t>(kernel.maxThreads)) << kernel.name;
  }
}

} // namespace
} // namespace recast::ptx
