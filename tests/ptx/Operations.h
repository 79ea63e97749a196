// What instructions compute that touch neither memory nor other threads.
#pragma once
#include <cstdint>
#include <string>

namespace recast::ptx {

/// Operands and result are the bits of registers; of an operand those count that its type has. A signed result is
/// extended to all bits.
using Compute = uint64_t (*)(uint64_t a, uint64_t b, uint64_t c);

struct Operation {
  Compute compute = nullptr;
  int operands = 0;
};

/// By opcode with all its modifiers, "add.rn.f64"; compute == nullptr where there is none.
Operation findOperation(const std::string &opcode);

} // namespace recast::ptx
