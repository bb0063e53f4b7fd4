"""Signs and verifies folders of files in the format of OpenSSF Model Signing (OMS).

A signed folder has a file `model.sig`: a Sigstore bundle with a DSSE envelope, whose payload is an
in-toto statement with the sha256 of every file. The tools of OpenSSF read and write the same
format. Only the package `cryptography` is needed.

- `strict_json`: parses JSON from outside, without tolerance.
- `envelope`: the bundle and the envelope in `model.sig`.
- `statement`: the statement that is signed: the digests of all files.
- `key_files`: reads and makes ECDSA keys on the curve P-256.
- `certificates`: checks chains of X.509 certificates.
- `trust_store`: key pairs, trusted and revoked keys of a user.
- `folder`: signs a folder, and examines a signed one.
"""
