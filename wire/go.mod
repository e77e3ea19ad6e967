module sandbox.internal/wire

go 1.26.0
