# recast_library(NAME [MLIR] [DEPENDS target...] [LINK library...]): a library of every .cpp beside the CMakeLists.txt.
#
# DEPENDS names recast's own libraries and is checked against the layering: ir links neither passes nor runtime (both may
# link ir, costs included), and passes and runtime do not link each other. MLIR adds the headers and the shared MLIR and LLVM libraries.
add_library(recast_flags INTERFACE)
target_compile_options(recast_flags INTERFACE -Wall -Wextra -Werror -Wno-unused-parameter)
if(RECAST_SANITIZE)
  target_compile_options(recast_flags INTERFACE -fsanitize=address,undefined -fno-sanitize=vptr -fno-omit-frame-pointer)
  target_link_options(recast_flags INTERFACE -fsanitize=address,undefined)
endif()

add_library(recast_mlir INTERFACE)
target_include_directories(recast_mlir SYSTEM INTERFACE ${MLIR_INCLUDE_DIRS} ${LLVM_INCLUDE_DIRS})
target_link_directories(recast_mlir INTERFACE ${LLVM_LIBRARY_DIR})
target_link_libraries(recast_mlir INTERFACE MLIR LLVM-22)
target_compile_options(recast_mlir INTERFACE "SHELL:-include ${CMAKE_CURRENT_LIST_DIR}/LibraryStatistics.h")

function(recast_layer out target)
  string(REGEX MATCH "^recast_(ir|passes|runtime)" match ${target})
  set(${out} "${CMAKE_MATCH_1}" PARENT_SCOPE)
endfunction()

function(recast_check_layering name)
  recast_layer(from ${name})
  foreach(dependency ${ARGN})
    recast_layer(to ${dependency})
    if(("${from}" STREQUAL "ir" AND "${to}" MATCHES "passes|runtime") OR
       ("${from}" STREQUAL "passes" AND "${to}" STREQUAL "runtime") OR
       ("${from}" STREQUAL "runtime" AND "${to}" STREQUAL "passes"))
      message(FATAL_ERROR "layering: ${name} must not depend on ${dependency}")
    endif()
  endforeach()
endfunction()

function(recast_library name)
  cmake_parse_arguments(ARG "MLIR" "" "DEPENDS;LINK;SOURCES" ${ARGN})
  recast_check_layering(${name} ${ARG_DEPENDS})
  if(NOT ARG_SOURCES)
    file(GLOB ARG_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  endif()
  if(NOT ARG_SOURCES)
    add_library(${name} INTERFACE)
    return()
  endif()
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC ${ARG_DEPENDS} ${ARG_LINK} PRIVATE recast_flags)
  if(ARG_MLIR)
    target_link_libraries(${name} PUBLIC recast_mlir)
  endif()
endfunction()

function(recast_tool name)
  cmake_parse_arguments(ARG "" "" "DEPENDS;SOURCES" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS} recast_flags)
endfunction()

# recast_embeds(NAME SOURCE library...): objects of a source that reads files with #embed. ccache does not see those files,
# and would give the object of before: it takes no part.
function(recast_embeds name source)
  add_library(${name} OBJECT ${source})
  set_target_properties(${name} PROPERTIES CXX_COMPILER_LAUNCHER "")
  set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS -Wno-c23-extensions)
  target_link_libraries(${name} PRIVATE recast_flags ${ARGN})
endfunction()

# recast_emulates(NAME): the program runs generated GPU kernels by the emulation. They are opened at run time, and call
# the device's functions by name.
function(recast_emulates name)
  target_link_libraries(${name} PRIVATE $<LINK_LIBRARY:WHOLE_ARCHIVE,recast_runtime_fusion_wide>)
  target_link_options(${name} PRIVATE "LINKER:--export-dynamic-symbol=recast_gpu_*"
    "LINKER:--export-dynamic-symbol=__sanitizer_cov_*")
endfunction()
