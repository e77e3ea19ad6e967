package mcp

import (
	"context"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	sandbox "sandbox.internal/clients/go"
)

// MaxText is maxText.
const MaxText = maxText

// Excerpt shows an output that comes in pieces of so many bytes.
func Excerpt(output string, pieces int) string {
	e := &excerpt{}
	for len(output) > 0 {
		n := min(pieces, len(output))
		e.add([]byte(output[:n]))
		output = output[n:]
	}
	return e.text(func(line int64) string { return fmt.Sprintf("line %d", line) })
}

// NewWithin is New with another patience for creates.
func NewWithin(patience time.Duration,
	client func(context.Context) (*sandbox.Client, error)) *mcp.Server {
	return newServer("test", nil, &tools{client: client, patience: patience})
}
