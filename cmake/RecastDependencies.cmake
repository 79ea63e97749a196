# Finds what tools/setup installs. Imported here, linked only by the targets that name them.
find_package(MLIR REQUIRED CONFIG PATHS /usr/lib/llvm-22/lib/cmake/mlir)
list(APPEND CMAKE_MODULE_PATH ${MLIR_CMAKE_DIR} ${LLVM_CMAKE_DIR})
include(TableGen)
include(AddLLVM)
include(AddMLIR)

find_package(Protobuf REQUIRED)
find_package(Threads REQUIRED)
find_package(GTest REQUIRED)
find_package(benchmark REQUIRED)

# Clp solves the linear programs of passes/checkpoint/remat/bound.
find_path(RECAST_CLP_INCLUDE coin/ClpSimplex.hpp REQUIRED)
find_library(RECAST_CLP_LIB Clp REQUIRED)
find_library(RECAST_COIN_UTILS_LIB CoinUtils REQUIRED)
add_library(recast_clp INTERFACE)
target_include_directories(recast_clp SYSTEM INTERFACE ${RECAST_CLP_INCLUDE})
target_link_libraries(recast_clp INTERFACE ${RECAST_CLP_LIB} ${RECAST_COIN_UTILS_LIB})

# ONNX: the library's headers ask for these definitions.
find_library(RECAST_ONNX_LIB onnx PATHS ${RECAST_DEPS}/onnx-cpp/lib NO_DEFAULT_PATH REQUIRED)
find_library(RECAST_ONNX_PROTO_LIB onnx_proto PATHS ${RECAST_DEPS}/onnx-cpp/lib NO_DEFAULT_PATH)
add_library(recast_onnx_cpp INTERFACE)
target_include_directories(recast_onnx_cpp SYSTEM INTERFACE ${RECAST_DEPS}/onnx-cpp/include ${Protobuf_INCLUDE_DIRS})
target_compile_definitions(recast_onnx_cpp INTERFACE ONNX_ML=1 ONNX_NAMESPACE=onnx)
target_link_libraries(recast_onnx_cpp INTERFACE ${RECAST_ONNX_LIB})
if(RECAST_ONNX_PROTO_LIB)
  target_link_libraries(recast_onnx_cpp INTERFACE ${RECAST_ONNX_PROTO_LIB})
endif()
target_link_libraries(recast_onnx_cpp INTERFACE protobuf::libprotobuf)

# oneDNN with libgomp as its thread pool.
find_path(RECAST_DNNL_INCLUDE dnnl.hpp PATHS ${RECAST_DEPS}/include NO_DEFAULT_PATH REQUIRED)
find_library(RECAST_DNNL_LIB NAMES dnnl PATHS ${RECAST_DEPS}/lib NO_DEFAULT_PATH REQUIRED)
find_library(RECAST_GOMP_LIB NAMES libgomp.so.1 REQUIRED)
add_library(recast_onednn INTERFACE)
target_include_directories(recast_onednn SYSTEM INTERFACE ${RECAST_DNNL_INCLUDE})
target_link_libraries(recast_onednn INTERFACE ${RECAST_DNNL_LIB} ${RECAST_GOMP_LIB})

# CUDA is optional when configuring, and never needed on a CPU.
find_path(RECAST_CUDA_INCLUDE cuda.h HINTS /usr/local/cuda/include)
if(RECAST_CUDA_INCLUDE)
  message(STATUS "recast: CUDA's headers found (${RECAST_CUDA_INCLUDE}): the tests compare declarations with them")
else()
  message(STATUS "recast: CUDA's headers not found: declarations of its libraries are not compared with them")
endif()
