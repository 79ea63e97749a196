// Regions built by hand, compiled and run.
#pragma once
#include "runtime/fusion/CodeGen.h"
#include "runtime/fusion/RegionBuilder.h"
#include "runtime/kernels/Parallel.h"
#include "runtime/kernels/cpu/Generated.h"
#include <gtest/gtest.h>

namespace recast::fusion {

/// A region with its code. Failures are test failures.
class CompiledRegion {
public:
  explicit CompiledRegion(Region made) : region(std::move(made)) {
    std::string reason;
    if (!schedule(region, program, reason)) {
      ADD_FAILURE() << reason;
      return;
    }
    name = contentName(region, program);
    recast::fusion::Kernel kernel{&region, &program, name};
    auto object = compileKernels({&kernel, 1});
    if (!object) {
      ADD_FAILURE() << object.message();
      return;
    }
    CodeObject shared{CodeObject::SharedObject, hostTarget(), *object};
    if (Status status = code.load({&shared, 1}); !status.ok())
      ADD_FAILURE() << status.message();
  }

  /// `buffers` are inputs, then outputs.
  void run(std::vector<void *> buffers) {
    std::vector<std::byte> memory(program.workspaceBytes + 64);
    auto *workspace = reinterpret_cast<void *>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
    for (size_t i = 0; i < program.phases.size(); ++i) {
      GeneratedCode::Entry entry = code.find(entryName(name, i));
      ASSERT_NE(entry, nullptr);
      parallelFor(program.phases[i].ranges(), 1,
                  [&](int64_t begin, int64_t end) { entry(buffers.data(), workspace, begin, end); });
    }
  }

  Region region;
  Program program;
  std::string name;
  GeneratedCode code;
};

/// y = op(x), f32.
inline Region unaryRegion(Op op, int64_t count) {
  RegionBuilder b;
  int x = b.input({DType::F32, {count}});
  b.region.outputs = {b.unary(op, x)};
  return std::move(b.region);
}

} // namespace recast::fusion
