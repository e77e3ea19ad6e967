package reach

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/proxy"
)

// CodeNotAnswering is the code of a 502: the state says that the sandbox runs, but its daemon does
// not answer.
const CodeNotAnswering = "SANDBOX_NOT_ANSWERING"

// ErrTokenRefused: what answers at the sandbox's address does not have its token, so it is another
// one's daemon.
var ErrTokenRefused = errors.New("the token was refused")

// Inspect takes the answers out that come from the daemon's own proxy and not from behind it, and
// gives them the service's form, as errors. It is for [proxy.Target].
func Inspect(response *http.Response) error {
	const longest = 4 << 10
	switch {
	case response.StatusCode == http.StatusUnauthorized && strings.Contains(response.Header.Get("WWW-Authenticate"), lifecycle.TokenHeader):
		return ErrTokenRefused
	case response.StatusCode != http.StatusBadGateway || response.Header.Get("Content-Type") != "application/json",
		response.ContentLength < 0 || response.ContentLength > longest:
		return nil
	}
	start, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("%w: %w", proxy.ErrNoAnswer, err)
	}
	var own struct{ Code, Message string }
	if json.Unmarshal(start, &own) == nil && (own.Code == "PORT_NOT_LISTENING" || own.Code == "PORT_NOT_ANSWERING") {
		return &serve.Problem{Status: http.StatusBadGateway, Code: own.Code, Message: own.Message}
	}
	response.Body.Close()
	response.Body = io.NopCloser(bytes.NewReader(start))
	return nil
}
