"""A client that knows an address and nothing else of Forerun: it asks the server itself for its messages.

Run as a program, under any grpcio and protobuf: prints their versions and the events of one stream as JSON.
"""

import json
import sys
from importlib.util import find_spec

import google.protobuf
import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase


def main(address: str, service: str) -> None:
    with grpc.insecure_channel(address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        listed = list(database.get_services())
        method = descriptor_pool.DescriptorPool(database).FindServiceByName(service).FindMethodByName("Generate")
        request_class = message_factory.GetMessageClass(method.input_type)
        call = channel.unary_stream(
            f"/{service}/Generate",
            request_serializer=request_class.SerializeToString,
            response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
        )
        request = request_class(tokens={"ids": [1, 2]}, sampling={"max_tokens": 3, "ignore_eos": True})
        events = [response.WhichOneof("event") for response in call(request, timeout=10)]
    seen = {
        "grpc": grpc.__version__,
        "protobuf": google.protobuf.__version__,
        "forerun": find_spec("forerun") is not None,
        "services": listed,
        "events": events,
    }
    print(json.dumps(seen))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
