#include "runtime/kernels/cuda/emulation/Shadow.h"

namespace recast::cuda::emulation {

Shadow::Cell &Shadow::at(uintptr_t address) {
  uintptr_t number = address / kPageBytes;
  if (number != lastNumber) {
    std::unique_ptr<Page> &page = pages[number];
    if (!page)
      page = std::make_unique<Page>();
    lastNumber = number;
    lastPage = page.get();
  }
  return (*lastPage)[address % kPageBytes];
}

const Access *Shadow::read(uintptr_t address, const Access &access) {
  Cell &cell = at(address);
  if (!cell.written.isBefore(access) && !(cell.written.isAtomic && access.isAtomic))
    return &cell.written;
  // Of the reads that a later write may race with two are kept, of different warps or blocks if there are such: what
  // is in order with both is in order with all.
  auto isElsewhere = [&](const Access &other) {
    return other.block != access.block || other.thread / 32 != access.thread / 32;
  };
  bool isKept = !cell.otherRead.isBefore(access) && isElsewhere(cell.otherRead);
  if (!isKept && !cell.read.isBefore(access))
    cell.otherRead = cell.read;
  cell.read = access;
  return nullptr;
}

const Access *Shadow::write(uintptr_t address, const Access &access) {
  Cell &cell = at(address);
  for (const Access *other : {&cell.written, &cell.read, &cell.otherRead})
    if (!other->isBefore(access) && !(other->isAtomic && access.isAtomic))
      return other;
  cell.written = access;
  return nullptr;
}

bool Shadow::isWritten(uintptr_t address, const Access &access) {
  const Access &written = at(address).written;
  return written.launch == access.launch && written.block == access.block;
}

} // namespace recast::cuda::emulation
