// C = A B^T in BF16, one thread per output element, float32 accumulation: right, readable and slow.
// A is [M, K], B is [N, K], both contiguous along K; C is [M, N].
//
// A Python extension module without torch's headers, so that it builds in seconds: run(a, b, c) takes the tensors
// themselves and asks them for their addresses. Work goes to the default stream, which PyTorch uses too.
#include <Python.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace {

__global__ void multiply(const __nv_bfloat16* __restrict__ a, const __nv_bfloat16* __restrict__ b,
                         __nv_bfloat16* __restrict__ c, int m, int n, int k) {
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  const int col = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= m || col >= n) return;
  const __nv_bfloat16* left = a + size_t(row) * k;
  const __nv_bfloat16* right = b + size_t(col) * k;
  float sum = 0.0f;
  for (int i = 0; i < k; ++i) sum += __bfloat162float(left[i]) * __bfloat162float(right[i]);
  c[size_t(row) * n + col] = __float2bfloat16(sum);
}

void* address(PyObject* tensor) {
  PyObject* answer = PyObject_CallMethod(tensor, "data_ptr", nullptr);
  if (!answer) return nullptr;
  void* pointer = PyLong_AsVoidPtr(answer);
  Py_DECREF(answer);
  return pointer;
}

int extent(PyObject* tensor, int dimension) {
  PyObject* answer = PyObject_CallMethod(tensor, "size", "i", dimension);
  if (!answer) return -1;
  const int value = static_cast<int>(PyLong_AsLong(answer));
  Py_DECREF(answer);
  return value;
}

PyObject* entry(PyObject*, PyObject* args) {
  PyObject *a, *b, *c;
  if (!PyArg_ParseTuple(args, "OOO", &a, &b, &c)) return nullptr;
  const int m = extent(a, 0), k = extent(a, 1), n = extent(b, 0);
  const auto* left = static_cast<const __nv_bfloat16*>(address(a));
  const auto* right = static_cast<const __nv_bfloat16*>(address(b));
  auto* out = static_cast<__nv_bfloat16*>(address(c));
  if (PyErr_Occurred()) return nullptr;
  const dim3 block(32, 8);
  const dim3 grid((n + block.x - 1) / block.x, (m + block.y - 1) / block.y);
  multiply<<<grid, block>>>(left, right, out, m, n, k);
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) {
    PyErr_SetString(PyExc_RuntimeError, cudaGetErrorString(status));
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {{"run", entry, METH_VARARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "kernel", nullptr, -1, methods};

}  // namespace

#ifndef TORCH_EXTENSION_NAME
#define TORCH_EXTENSION_NAME benchmark_kernel
#endif
#define INIT_(name) PyInit_##name
#define INIT(name) INIT_(name)

PyMODINIT_FUNC INIT(TORCH_EXTENSION_NAME)(void) { return PyModule_Create(&module); }
