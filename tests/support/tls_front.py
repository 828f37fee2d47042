"""A TLS end in front of a Redis that has none of its own, as the wheel's."""

import asyncio
import ssl
from pathlib import Path


def mutual_tls(ca_file: Path, cert_file: Path, key_file: Path) -> ssl.SSLContext:
    """A server's context that asks clients for a certificate of the authority."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca_file)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(cert_file, key_file)
    return context


async def start_tls_front(host: str, port: int, context: ssl.SSLContext, inner_port: int) -> asyncio.Server:
    """Listens on ``host:port`` (0: a free one) and carries everything on to ``inner_port`` of this machine."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(65536):
                writer.write(chunk)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", inner_port)
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    return await asyncio.start_server(serve, host, port, ssl=context)
