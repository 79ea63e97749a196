// Whether a function that is declared here can be called as one of a library's header: the same number of arguments,
// each passed in the same way.
#pragma once
#include <string_view>
#include <type_traits>

namespace recast::device {

/// Numbers behind a pointer are as large; what else it points to is the library's affair.
template <typename Ours, typename Theirs> constexpr bool samePointee() {
  if constexpr (std::is_arithmetic_v<Ours> && (std::is_arithmetic_v<Theirs> || std::is_enum_v<Theirs>))
    return sizeof(Ours) == sizeof(Theirs) && std::is_floating_point_v<Ours> == std::is_floating_point_v<Theirs>;
  else if constexpr (std::is_pointer_v<Ours>)
    return std::is_pointer_v<Theirs>;
  else
    return true;
}

template <typename Ours, typename Theirs> constexpr bool sameArgument() {
  if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>)
    return samePointee<std::remove_cv_t<std::remove_pointer_t<Ours>>,
                       std::remove_cv_t<std::remove_pointer_t<Theirs>>>();
  else
    return sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
           std::is_class_v<Ours> == std::is_class_v<Theirs> &&
           std::is_floating_point_v<Ours> == std::is_floating_point_v<Theirs>;
}

template <typename Ours, typename... OurArguments, typename Theirs, typename... TheirArguments>
constexpr bool sameCall(Ours (*)(OurArguments...), Theirs (*)(TheirArguments...)) {
  if constexpr (sizeof...(OurArguments) == sizeof...(TheirArguments))
    return sameArgument<Ours, Theirs>() && (sameArgument<OurArguments, TheirArguments>() && ...);
  else
    return false;
}

} // namespace recast::device

#define RECAST_TEXT(Symbol) #Symbol
/// The member of the table of functions is declared as the library's function of the name that is looked up at run
/// time. A header may give a plain name to a later function (cuMemAlloc is cuMemAlloc_v2 there): that name must be
/// looked up.
#define RECAST_SAME_CALL(Table, Member, Symbol)                                                                        \
  static_assert(recast::device::sameCall(decltype(Table::Member)(nullptr), decltype (&Symbol)(nullptr)), #Symbol);     \
  static_assert(std::string_view(#Symbol) == RECAST_TEXT(Symbol), #Symbol " has another name in the library");
