// The machine that executes PTX runs right programs right, and names the fault of wrong ones.
#include "tests/ptx/Machine.h"
#include "runtime/kernels/cuda/table/Ptx.h"
#include "tests/ptx/PtxProgram.h"
#include <array>
#include <bit>
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  alignas(16) std::array<uint32_t, 64> in{};
  std::array<uint32_t, 64> between{}; ///< Not allocated.
  std::array<uint32_t, 64> out{};
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

TEST(Machine, FaultsAreNamed) {
  struct Case {
    const char *body, *says;
  };
  for (const Case &c : {
           Case{"st.global.b32 [%rd3], %r1;", "line 14 of its PTX, block 0, thread 0: a write of 4 bytes"},
           {"st.global.b32 [%rd3], %r1;", "is into what is only to be read"},
           {"ld.global.b32 %r2, [%rd3+4];", "thread 63: a read of 4 bytes"},
           {"ld.global.b32 %r2, [%rd3+-4];", "thread 0: a read of 4 bytes"},
           {"ld.global.b32 %r2, [%rd3+2];", "no multiple of that"},
           {"ld.global.v4.b32 {%r2, %r3, %r4, %r5}, [%rd3];", "thread 1: an access of 16 bytes"},
           {"ld.global.b32 %r2, [%rd3+256];", "is outside of what has been allocated"},
           {".shared .align 4 .b8 s[8]; mov.b64 %rd6, s; ld.shared.b32 %r2, [%rd6];", "that no thread has written"},
           {".shared .align 4 .b8 s[8]; mov.b64 %rd6, s; st.shared.b32 [%rd6+8], %r1;", "is outside of shared memory"},
           {".shared .align 4 .b8 s[8]; mov.b64 %rd6, s; st.shared.b32 [%rd6+-4], %r1;", "of the variables in shared"},
           {"ld.shared.b32 %r2, [%rd3];", "is outside of shared memory"},
           {"mov.b64 %rd6, 0; ld.global.b32 %r2, [%rd6];", "a read of 4 bytes at 0 is outside"},
           {"ld.param.b64 %rd6, [f_param_1+8];", "is outside of the parameters"},
           {"st.param.b64 [f_param_1], %rd1;", "is into the function's own parameters"},
           {"setp.eq.b32 %p1, %r1, 7; @%p1 ret; bar.sync 0;", "has ended before this barrier"},
           {"setp.lt.u32 %p1, %r1, 7; @%p1 bra $L1; bar.sync 0; ret; $L1: bar.sync 0;", "at different barriers"},
           {"setp.lt.u32 %p1, %r1, 32; @%p1 bra $L1; bar.sync 0; ret; $L1: bar.sync 1;", "of different numbers"},
           {"setp.eq.b32 %p1, %r1, 40; @%p1 ret; shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;", "not all lanes of its mask"},
           {"shfl.sync.bfly.b32 %r2, %r1, 1, 31, 1;", "not all lanes of its mask"},
           {"setp.eq.b32 %p1, %r1, 3; @%p1 bra $L1; bar.warp.sync -1; $L1: bar.sync 0;", "not all lanes of its mask"},
           {"$L1: brx.idx %r1, $L2; $L2: .branchtargets $L1;", "is not known"},
           {"$L2: .branchtargets $L3, $L3; brx.idx %r1, $L2; $L3: ret;", "thread 2: branch 2 of 2"},
           {"frobnicate.f32 %r2, %r1;",
            "PTX, line 14: the instruction frobnicate.f32, or this form of it, is not known"},
           {"add.ftz.f32 %r2, %r1, %r1;", "the instruction add.ftz.f32"},
           {"ld.local.b32 %r2, [%rd1];", "the instruction ld.local.b32"},
           {"atom.global.nand.b32 %r2, [%rd4], %r1;", "the instruction atom.global.nand.b32"},
           {".local .align 4 .b8 depot[8];", "the directive .local is not known"},
           {"add.s32 %r2, %r16, %r1;", "the register %r16 is not known"},
           {"bra $L9;", "there is no label $L9"},
           {"mov.b64 %rd6, nothing;", "there is no nothing"},
           {"call.uni g, ();", "there is no function g"},
       }) {
    Data data;
    EXPECT_THAT(execute(program(c.body), data), HasSubstr(c.says)) << c.body;
  }
  Data data;
  EXPECT_THAT(execute(program(""), data, 96), HasSubstr("a grid of 1 blocks of 96 threads")) << ".maxntid is 64";
}

TEST(Machine, LanesAndAtomics) {
  for (bool reversed : {false, true}) {
    Data data;
    ASSERT_EQ(execute(program(R"(
  shfl.sync.bfly.b32 %r2, %r1, 3, 31, -1;
  shfl.sync.idx.b32 %r3, %r1, 5, 31, -1;
  setp.lt.u32 %p1, %r1, 40;
  vote.sync.ballot.b32 %r4, %p1, -1;
  bar.warp.sync -1;
  mad.lo.s32 %r5, %r3, 100, %r2;
  xor.b32 %r6, %r4, %r5;
  st.global.b32 [%rd4], %r6;
  bar.sync 0;
  atom.global.add.u32 %r7, [%rd2], %r1;)"),
                      data, 64, reversed),
              "");
    for (uint32_t i = 0; i < 64; ++i) {
      uint32_t ballot = i < 32 ? ~0u : 0xff, want = ballot ^ ((i / 32 * 32 + 5) * 100 + (i ^ 3));
      EXPECT_EQ(data.out[i], want + (i == 0 ? 63 * 64 / 2 : 0)) << i;
    }
  }
}

TEST(Machine, CallsFunctions) {
  Data data;
  ASSERT_EQ(execute(program(R"(
  cvt.rn.f64.u32 %rd6, %r1;
  { .param .b64 param0; .param .b64 param1; .param .b64 retval0;
  st.param.b64 [param0], %rd6;
  st.param.b64 [param1], 0d4000000000000000;
  call.uni (retval0), twice, (param0, param1);
  ld.param.b64 %rd7, [retval0]; }
  cvt.rzi.u32.f64 %r2, %rd7;
  st.global.b32 [%rd4], %r2;)",
                            R"(
.func (.param .b64 func_retval0) twice(.param .b64 twice_param_0, .param .b64 twice_param_1);
.func (.param .b64 func_retval0) twice(.param .b64 twice_param_0, .param .b64 twice_param_1)
{
  .reg .b64 %rd<4>;
  ld.param.b64 %rd1, [twice_param_0];
  ld.param.b64 %rd2, [twice_param_1];
  fma.rn.f64 %rd3, %rd1, %rd2, 0d3FF0000000000000;
  st.param.b64 [func_retval0], %rd3;
  ret;
})"),
                    data),
            "");
  for (uint32_t i = 0; i < 64; ++i)
    EXPECT_EQ(data.out[i], 2 * i + 1);
}

uint64_t compute(const char *opcode, uint64_t a, uint64_t b = 0, uint64_t c = 0) {
  Operation operation = findOperation(opcode);
  EXPECT_TRUE(operation.compute) << opcode;
  return operation.compute ? operation.compute(a, b, c) : 0;
}
uint64_t bits(float value) { return std::bit_cast<uint32_t>(value); }
uint64_t bits(double value) { return std::bit_cast<uint64_t>(value); }

/// The compiler's own conversions are the reference.
TEST(Operations, HalvesAreTheCompilers) {
  for (uint32_t i = 0; i < 0x10000; ++i) {
    auto half = std::bit_cast<_Float16>(static_cast<uint16_t>(i));
    auto value = static_cast<float>(half);
    if (value != value)
      continue;
    ASSERT_EQ(compute("cvt.f32.f16", i), bits(value));
    ASSERT_EQ(compute("cvt.f64.f16", i), bits(static_cast<double>(value)));
    ASSERT_EQ(compute("cvt.rn.f16.f32", bits(value)), i);
    // Around the middle between it and the next: ties, and what is nearly one.
    auto next = static_cast<float>(std::bit_cast<_Float16>(static_cast<uint16_t>(i + 1)));
    float middle = value / 2 + next / 2;
    for (float x : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, HUGE_VALF)})
      if (x == x)
        ASSERT_EQ(compute("cvt.rn.f16.f32", bits(x)), std::bit_cast<uint16_t>(static_cast<_Float16>(x))) << x;
  }
}

TEST(Operations, FollowTheManual) {
  constexpr uint64_t kNan = 0x7fffffff;
  struct Case {
    const char *opcode;
    uint64_t a, b, c, want;
  };
  float inf = HUGE_VALF;
  for (const Case &c : {
           Case{"cvt.rzi.s32.f32", bits(3e9f), 0, 0, 0x7fffffff},
           {"cvt.rzi.s32.f32", kNan, 0, 0, 0},
           {"cvt.rzi.s64.f32", kNan, 0, 0, uint64_t(1) << 63},
           {"cvt.rzi.u32.f64", bits(std::nan("")), 0, 0, 0x80000000},
           {"cvt.rzi.u32.f32", bits(-1.5f), 0, 0, 0},
           {"cvt.rni.s32.f32", bits(2.5f), 0, 0, 2},
           {"cvt.rpi.s32.f64", bits(2.25), 0, 0, 3},
           {"cvt.rmi.f32.f32", bits(-0.5f), 0, 0, bits(-1.0f)},
           {"cvt.rn.f32.u64", ~uint64_t(0), 0, 0, bits(0x1p64f)},
           {"cvt.rn.f32.f64", bits(1 + 0x1p-24 + 0x1p-52), 0, 0, bits(1 + 0x1p-23f)},
           {"cvt.s16.s8", 0x80, 0, 0, ~uint64_t(127)},
           {"cvt.u64.u32", ~uint64_t(0), 0, 0, 0xffffffff},
           {"add.rn.f32", bits(inf), bits(-inf), 0, kNan},
           {"sqrt.rn.f32", bits(-1.0f), 0, 0, kNan},
           {"min.f32", kNan, bits(2.0f), 0, bits(2.0f)},
           {"max.f32", bits(-0.0f), bits(0.0f), 0, bits(0.0f)},
           {"min.f64", bits(0.0), bits(-0.0), 0, bits(-0.0)},
           {"fma.rn.f32", bits(1 + 0x1p-12f), bits(1 + 0x1p-12f), bits(-1 - 0x1p-11f), bits(0x1p-24f)},
           {"copysign.f32", bits(-1.0f), bits(3.0f), 0, bits(-3.0f)},
           {"setp.ne.f32", kNan, bits(1.0f), 0, 0},
           {"setp.neu.f32", kNan, bits(1.0f), 0, 1},
           {"setp.ltu.f64", bits(std::nan("")), 0, 0, 1},
           {"setp.lt.s32", 0xffffffff, 0, 0, 1},
           {"setp.lt.u32", 0xffffffff, 0, 0, 0},
           {"shl.b32", 1, 32, 0, 0},
           {"shr.u32", 0x80000000, 40, 0, 0},
           {"shr.s64", uint64_t(1) << 63, 70, 0, ~uint64_t(0)},
           {"bfe.u32", 0x12345678, 8, 8, 0x56},
           {"bfe.u64", ~uint64_t(0), 60, 10, 15},
           {"prmt.b32", 0x44332211, 0x88776655, 0x7610, 0x88772211},
           {"prmt.b32", 0x80332211, 0, 0xbbb3, 0xffffff80},
           {"mul.wide.s32", 0xffffffff, 5, 0, static_cast<uint64_t>(-5)},
           {"mul.wide.u16", 0xffff, 0xffff, 0, 0xfffe0001},
           {"mul.hi.u64", ~uint64_t(0), 16, 0, 15},
           {"div.s32", 0x80000000, 0xffffffff, 0, 0xffffffff80000000},
           {"rem.s64", static_cast<uint64_t>(-7), 3, 0, ~uint64_t(0)},
           {"div.u32", 7, 0, 0, 0xffffffff},
           {"selp.b32", 1, 2, 0, 2},
           {"not.pred", 1, 0, 0, 0},
       })
    EXPECT_EQ(compute(c.opcode, c.a, c.b, c.c), c.want) << c.opcode << " " << c.a << " " << c.b << " " << c.c;
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
