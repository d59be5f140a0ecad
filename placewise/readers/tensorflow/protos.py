"""The messages of TensorFlow's files, as far as the reader needs them; fields that are not listed are skipped.

Names and numbers of the fields are those of tensorflow/core/framework (graph, node_def, attr_value, tensor,
tensor_shape, types, function, op_def, cost_graph) and tensorflow/core/protobuf (meta_graph, saved_model, config).
The package name is our own, so that an installed TensorFlow does not clash with it.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

DATA_TYPES = {
    1: "FLOAT", 2: "DOUBLE", 3: "INT32", 4: "UINT8", 5: "INT16", 6: "INT8", 7: "STRING", 8: "COMPLEX64", 9: "INT64",
    10: "BOOL", 11: "QINT8", 12: "QUINT8", 13: "QINT32", 14: "BFLOAT16", 15: "QINT16", 16: "QUINT16", 17: "UINT16",
    18: "COMPLEX128", 19: "HALF", 20: "RESOURCE", 21: "VARIANT", 22: "UINT32", 23: "UINT64", 24: "FLOAT8_E5M2",
    25: "FLOAT8_E4M3FN", 26: "FLOAT8_E4M3FNUZ", 27: "FLOAT8_E4M3B11FNUZ", 28: "FLOAT8_E5M2FNUZ", 29: "INT4",
    30: "UINT4", 31: "INT2", 32: "UINT2", 33: "FLOAT4_E2M1FN",
}  # fmt: skip
"""The enumeration DataType without its prefix DT_; adding 100 gives a reference to such a value (a TF1 variable)."""
REFERENCE = 100

_SCHEMA = """
GraphDef: node NodeDef* 1, library FunctionDefLibrary 2
NodeDef: name string 1, op string 2, input string* 3, device string 4, attr AttrValue% 5
AttrValue|value: list ListValue 1, s bytes 2, i int64 3, f float 4, b bool 5, type DataType 6, shape TensorShapeProto 7,
    tensor TensorProto 8, placeholder string 9, func NameAttrList 10
ListValue: s bytes* 2, i int64* 3, f float* 4, b bool* 5, type DataType* 6, shape TensorShapeProto* 7,
    tensor TensorProto* 8, func NameAttrList* 9
NameAttrList: name string 1, attr AttrValue% 2
TensorShapeProto: dim Dim* 2, unknown_rank bool 3
Dim: size int64 1, name string 2
TensorProto: dtype DataType 1, tensor_shape TensorShapeProto 2, tensor_content bytes 4, float_val float* 5,
    double_val double* 6, int_val int32* 7, string_val bytes* 8, int64_val int64* 10, bool_val bool* 11,
    half_val int32* 13, uint32_val uint32* 16, uint64_val uint64* 17
FunctionDefLibrary: function FunctionDef* 1
FunctionDef: signature OpDef 1, node_def NodeDef* 3, ret string% 4
OpDef: name string 1, input_arg ArgDef* 2, output_arg ArgDef* 3
ArgDef: name string 1, type DataType 3, number_attr string 5, type_list_attr string 6
SavedModel: saved_model_schema_version int64 1, meta_graphs MetaGraphDef* 2
MetaGraphDef: meta_info_def MetaInfoDef 1, graph_def GraphDef 2, signature_def SignatureDef% 5
MetaInfoDef: tags string* 4
SignatureDef: inputs TensorInfo% 1, outputs TensorInfo% 2
TensorInfo: name string 1
RunMetadata: cost_graph CostGraphDef 2
CostGraphDef: node CostNode* 1
CostNode: name string 1, device string 2, id int32 3, input_info InputInfo* 4, output_info OutputInfo* 5,
    temporary_memory_size int64 6, is_final bool 7, control_input int32* 8, compute_cost int64 9,
    persistent_memory_size int64 12, inaccurate bool 17
InputInfo: preceding_node int32 1, preceding_port int32 2
OutputInfo: size int64 1, alias_input_port int64 2, shape TensorShapeProto 3, dtype DataType 4
"""
"""One message per line. A type with ``*`` is repeated, with ``%`` a map from text to it; ``|value`` is a oneof."""
_PACKAGE = "placewise.tensorflow"
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    name: getattr(_Field, f"TYPE_{name.upper()}")
    for name in ("string", "bytes", "int32", "int64", "uint32", "uint64", "float", "double", "bool")
}


def _messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="placewise/tensorflow.proto", package=_PACKAGE, syntax="proto3")
    enum = file.enum_type.add(name="DataType")
    enum.value.add(name="DT_INVALID", number=0)
    for number, name in DATA_TYPES.items():
        enum.value.add(name=f"DT_{name}", number=number)
        enum.value.add(name=f"DT_{name}_REF", number=number + REFERENCE)
    for line in _SCHEMA.replace("\n    ", " ").strip().splitlines():
        head, _, fields = line.partition(": ")
        name, _, choice = head.partition("|")
        message = file.message_type.add(name=name)
        for field in fields.split(", "):
            _add_field(message, *field.split())
            if choice:
                message.field[-1].oneof_index = 0
        if choice:
            message.oneof_decl.add(name=choice)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        message.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{message.name}"))
        for message in file.message_type
    }


def _add_field(message: descriptor_pb2.DescriptorProto, name: str, kind: str, number: str) -> None:
    field = message.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
    if kind[-1] in "*%":
        field.label = _Field.LABEL_REPEATED
    if kind.endswith("%"):
        entry = message.nested_type.add(name=name.title().replace("_", "") + "Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", "string", "1")
        _add_field(entry, "value", kind[:-1], "2")
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{message.name}.{entry.name}"
        return
    base = kind.rstrip("*")
    if base in _SCALARS:
        field.type = _SCALARS[base]
    else:
        field.type = _Field.TYPE_ENUM if base == "DataType" else _Field.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{base}"


MESSAGES: dict[str, Any] = _messages()
"""Message classes by name."""
