#include "runtime/reference/ElementwiseLoops.h"
#include <vector>

namespace recast::reference {

std::span<const Entry> elementwiseEntries() {
  static const std::vector<Entry> entries = [] {
    std::vector<Entry> all;
    for (std::span<const Entry> part : {elementwiseUnaryEntries(), elementwiseBinaryEntries(),
                                        elementwiseVariadicEntries(), elementwiseSelectEntries()})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  }();
  return entries;
}

} // namespace recast::reference
