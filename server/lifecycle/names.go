package lifecycle

import (
	"crypto/rand"
	"encoding/hex"
)

const (
	// DaemonPort is where execd listens in a sandbox that has a network of its own (execd document,
	// default port).
	DaemonPort = 44772
	// TokenHeader is the header that carries the token of a sandbox's execd (execd document,
	// "Authentication").
	TokenHeader = "X-EXECD-ACCESS-TOKEN"
	// KeyNameHeader is the header that carries the name of the API key of a request to a sandbox's
	// execd, escaped as a part of a path.
	KeyNameHeader = "X-EXECD-KEY-NAME"
	// SidecarTokenHeader is the header that carries the token of an egress sidecar
	// (openapi/egress.yaml).
	SidecarTokenHeader = "X-EGRESS-ACCESS-TOKEN"
	// SecureAccessKey is the metadata, true, of a sandbox that a client of OpenSandbox made with
	// secureAccess: no compatibility may let into its ports without its token.
	SecureAccessKey = "opensandbox.io/secure-access"
)

// NewToken returns a secret of 256 random bits, in hexadecimal.
func NewToken() string {
	token := make([]byte, 32)
	rand.Read(token) // crypto/rand.Read never returns an error
	return hex.EncodeToString(token)
}
