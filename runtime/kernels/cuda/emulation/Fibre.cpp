#include "runtime/kernels/cuda/emulation/Fibre.h"
#include <cstdint>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RECAST_ADDRESS_SANITIZER
#include <sanitizer/common_interface_defs.h>
#endif
#endif

namespace recast::cuda::emulation {
namespace {

// AddressSanitizer has to know which stack is in use.
void leave(void **kept, const void *bottom, size_t bytes) {
#ifdef RECAST_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(kept, bottom, bytes);
#endif
}
void arrive(void *kept, const void **bottom, size_t *bytes) {
#ifdef RECAST_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(kept, bottom, bytes);
#endif
}

} // namespace

void Fibre::start(void (*function)(void *), void *context) {
  if (!memory)
    memory.reset(new std::byte[kStackBytes]);
  this->function = function;
  this->context = context;
  isEntered &= hasEnded; // One that stopped in the middle is entered anew.
  hasEnded = false;
}

// setcontext makes a system call; after the first entry plain jumps change stacks.
bool Fibre::resume() {
  leave(&callerStack, memory.get(), kStackBytes);
  if (_setjmp(outside) == 0) {
    if (isEntered)
      _longjmp(inside, 1);
    isEntered = true;
    getcontext(&first);
    first.uc_stack.ss_sp = memory.get();
    first.uc_stack.ss_size = kStackBytes;
    first.uc_link = nullptr;
    auto self = reinterpret_cast<uintptr_t>(this);
    // makecontext passes ints.
    makecontext(&first, reinterpret_cast<void (*)()>(enter), 2, static_cast<unsigned>(self >> 32),
                static_cast<unsigned>(self));
    setcontext(&first);
  }
  arrive(callerStack, nullptr, nullptr);
  return hasEnded;
}

void Fibre::suspend() {
  leave(&ownStack, callerBottom, callerBytes);
  if (_setjmp(inside) == 0)
    _longjmp(outside, 1);
  arrive(ownStack, &callerBottom, &callerBytes);
}

void Fibre::enter(unsigned high, unsigned low) {
  auto *self = reinterpret_cast<Fibre *>(static_cast<uintptr_t>(high) << 32 | low);
  arrive(nullptr, &self->callerBottom, &self->callerBytes);
  for (;;) {
    self->function(self->context);
    self->hasEnded = true;
    self->suspend(); // start() may have set another function by the time that it goes on.
  }
}

} // namespace recast::cuda::emulation
