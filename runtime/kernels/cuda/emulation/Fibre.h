// Threads of an emulated block: functions that can stop in the middle and go on later.
#pragma once
#include <csetjmp>
#include <cstddef>
#include <memory>
#include <ucontext.h>

namespace recast::cuda::emulation {

/// Runs one function at a time on a stack of its own. resume() returns when the function ends or calls suspend().
class Fibre {
public:
  static constexpr size_t kStackBytes = 64 << 10;

  /// Gives it a function to run; what it ran before is forgotten, even if that has not ended.
  void start(void (*function)(void *), void *context);
  /// True when the function has ended.
  bool resume();
  /// Called on the fibre's own stack: back to who resumed it.
  void suspend();
  const std::byte *stack() const { return memory.get(); }

private:
  static void enter(unsigned high, unsigned low);

  std::unique_ptr<std::byte[]> memory;
  void (*function)(void *) = nullptr;
  void *context = nullptr;
  bool isEntered = false, hasEnded = false;
  ucontext_t first;
  jmp_buf inside, outside;
  void *callerStack = nullptr, *ownStack = nullptr; ///< AddressSanitizer's notes on either stack.
  const void *callerBottom = nullptr;
  size_t callerBytes = 0;
};

} // namespace recast::cuda::emulation
