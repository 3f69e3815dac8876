// Answers requests with SavedModels as a server does that has no Python: TensorFlow's C API and libraries of ops.
//
// loader LIBRARY... < requests > answers, where all numbers are int64 in the machine's own order and
//   text     its length in bytes, the bytes
//   tensor   TF_DataType, rank, each dimension; then each string as a text, or all numbers as they lie in memory
//   request  path of a SavedModel: text; number of inputs, of each its name in the graph ("name:0": text) and tensor;
//            number of outputs, of each its name in the graph
//   answer   number of outputs and their tensors; or -1 and a text: why there is none
// A model stays loaded as long as the next request is for the same path.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"

enum { MOST = 32 };  // dimensions of a tensor, inputs or outputs of a request

static TF_Status* status;

static void fail(const char* what, const char* why) {
  fprintf(stderr, "loader: %s: %s\n", what, why);
  exit(1);
}

static void read_bytes(void* bytes, size_t size) {
  if (size > 0 && fread(bytes, size, 1, stdin) != 1) fail("stdin", "the last request is not whole");
}

static int64_t read_number(void) {
  int64_t number;
  read_bytes(&number, sizeof number);
  return number;
}

static int read_count(void) {
  int64_t count = read_number();
  if (count < 0 || count > MOST) fail("stdin", "a count is negative or over the most there may be");
  return count;
}

static char* read_text(int64_t size) {
  char* text = malloc(size + 1);
  read_bytes(text, size);
  text[size] = 0;
  return text;
}

static void write_number(int64_t number) { fwrite(&number, sizeof number, 1, stdout); }

static void write_text(const char* text, size_t size) {
  write_number(size);
  fwrite(text, 1, size, stdout);
}

static TF_Tensor* read_tensor(void) {
  TF_DataType type = read_number();
  int rank = read_count();
  int64_t shape[MOST], count = 1;
  for (int axis = 0; axis < rank; axis++) count *= shape[axis] = read_number();
  size_t size = count * (type == TF_STRING ? sizeof(TF_TString) : TF_DataTypeSize(type));
  TF_Tensor* tensor = TF_AllocateTensor(type, shape, rank, size);
  if (type != TF_STRING) {
    read_bytes(TF_TensorData(tensor), size);
    return tensor;
  }
  TF_TString* strings = TF_TensorData(tensor);
  for (int64_t i = 0; i < count; i++) {
    int64_t length = read_number();
    char* text = read_text(length);
    TF_StringInit(&strings[i]);
    TF_StringCopy(&strings[i], text, length);
    free(text);
  }
  return tensor;
}

static void write_tensor(const TF_Tensor* tensor) {
  write_number(TF_TensorType(tensor));
  write_number(TF_NumDims(tensor));
  for (int axis = 0; axis < TF_NumDims(tensor); axis++) write_number(TF_Dim(tensor, axis));
  if (TF_TensorType(tensor) != TF_STRING) {
    fwrite(TF_TensorData(tensor), 1, TF_TensorByteSize(tensor), stdout);
    return;
  }
  const TF_TString* strings = TF_TensorData(tensor);
  for (int64_t i = 0; i < TF_TensorElementCount(tensor); i++)
    write_text(TF_StringGetDataPointer(&strings[i]), TF_StringGetSize(&strings[i]));
}

// The tensor that is called "operation:number" in the graph.
static TF_Output read_output(TF_Graph* graph) {
  char* name = read_text(read_number());
  char* colon = strrchr(name, ':');
  if (colon == NULL) fail(name, "expected operation:number");
  *colon = 0;
  TF_Output output = {TF_GraphOperationByName(graph, name), atoi(colon + 1)};
  if (output.oper == NULL) fail(name, "the graph has no such operation");
  free(name);
  return output;
}

static TF_Session* load(const char* path, TF_Graph* graph) {
  TF_SessionOptions* options = TF_NewSessionOptions();
  const char* const tags[] = {"serve"};
  TF_Session* session = TF_LoadSessionFromSavedModel(options, NULL, path, tags, 1, graph, NULL, status);
  if (TF_GetCode(status) != TF_OK) fail(path, TF_Message(status));
  TF_DeleteSessionOptions(options);
  return session;
}

static void answer(TF_Session* session, TF_Graph* graph) {
  TF_Output inputs[MOST], outputs[MOST];
  TF_Tensor *given[MOST], *found[MOST] = {NULL};
  int input_count = read_count();
  for (int i = 0; i < input_count; i++) {
    inputs[i] = read_output(graph);
    given[i] = read_tensor();
  }
  int output_count = read_count();
  for (int i = 0; i < output_count; i++) outputs[i] = read_output(graph);
  TF_SessionRun(session, NULL, inputs, given, input_count, outputs, found, output_count, NULL, 0, NULL, status);
  if (TF_GetCode(status) == TF_OK) {
    write_number(output_count);
    for (int i = 0; i < output_count; i++) write_tensor(found[i]);
  } else {
    write_number(-1);
    write_text(TF_Message(status), strlen(TF_Message(status)));
  }
  for (int i = 0; i < input_count; i++) TF_DeleteTensor(given[i]);
  for (int i = 0; i < output_count; i++) TF_DeleteTensor(found[i]);
}

int main(int count, char** libraries) {
  status = TF_NewStatus();
  for (int i = 1; i < count; i++) {
    TF_LoadLibrary(libraries[i], status);
    if (TF_GetCode(status) != TF_OK) fail(libraries[i], TF_Message(status));
  }
  char* loaded = NULL;
  TF_Graph* graph = NULL;
  TF_Session* session = NULL;
  for (int64_t size; fread(&size, sizeof size, 1, stdin) == 1;) {
    char* path = read_text(size);
    if (loaded == NULL || strcmp(path, loaded) != 0) {
      if (session != NULL) {
        TF_DeleteSession(session, status);
        TF_DeleteGraph(graph);
      }
      graph = TF_NewGraph();
      session = load(path, graph);
    }
    free(loaded);
    loaded = path;
    answer(session, graph);
  }
  return fflush(stdout) == 0 ? 0 : 1;
}
