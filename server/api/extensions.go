package api

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"

	gen "sandbox.internal/gen/lifecycle"
	"sandbox.internal/openapi/serve/respond"
	"sandbox.internal/server/lifecycle"
)

// memberOf returns the bytes of one member of a valid JSON object as they were sent, nil when there
// is none. As in the validated value, names match exactly and the last of several members with one
// name counts.
func memberOf(object []byte, name string) []byte {
	var members map[string]json.RawMessage
	if json.Unmarshal(object, &members) != nil {
		return nil
	}
	return members[name]
}

// sandboxAnswer is the response with one sandbox. The generated one would change the bytes of the
// extensions: white space and escapes.
type sandboxAnswer struct {
	sandbox lifecycle.Sandbox
	applied *string // the preference that was applied
}

// VisitGetSandboxResponse implements the generated interface.
func (a sandboxAnswer) VisitGetSandboxResponse(w http.ResponseWriter) error {
	var body bytes.Buffer
	if err := writeSandbox(&body, a.sandbox); err != nil {
		return err
	}
	body.WriteByte('\n')
	if a.applied != nil {
		w.Header().Set("Preference-Applied", *a.applied)
	}
	return writeJSON(w, &body)
}

// listBuffer is the size of the write buffer of a list, in bytes.
const listBuffer = 32 << 10

// listAnswer is the response with a page of sandboxes. It is encoded sandbox by sandbox: a thousand
// of them may have a gigabyte of metadata.
type listAnswer struct {
	listing lifecycle.Listing
	page    lifecycle.Page
}

// VisitListSandboxesResponse implements the generated interface.
func (a listAnswer) VisitListSandboxesResponse(w http.ResponseWriter) error {
	pagination, err := json.Marshal(toPagination(a.listing.Total, a.page))
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	body := bufio.NewWriterSize(respond.BoundedWriter(w, 0), listBuffer)
	_, _ = body.WriteString(`{"items":[`)
	for i := range a.listing.Items {
		if i > 0 {
			_ = body.WriteByte(',')
		}
		if err := writeSandbox(body, a.listing.Items[i]); err != nil {
			return err
		}
	}
	_, _ = body.WriteString(`],"pagination":`)
	_, _ = body.Write(pagination)
	_, _ = body.WriteString("}\n")
	return body.Flush()
}

// jsonWriter is a [bytes.Buffer] or a [bufio.Writer].
type jsonWriter interface {
	io.Writer
	io.ByteWriter
	io.StringWriter
}

// writeSandbox writes a sandbox as JSON, and its extensions byte for byte.
func writeSandbox(body jsonWriter, sandbox lifecycle.Sandbox) error {
	data, err := json.Marshal(toSandbox(sandbox))
	if err != nil {
		return err
	}
	if sandbox.Extensions == nil {
		_, err := body.Write(data)
		return err
	}
	_, _ = body.Write(bytes.TrimSuffix(data, []byte("}"))) // the object is not empty: it has the id
	_, _ = body.WriteString(`,"extensions":`)
	_, _ = body.Write(sandbox.Extensions)
	return body.WriteByte('}')
}

func writeJSON(w http.ResponseWriter, body *bytes.Buffer) error {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	_, err := body.WriteTo(w)
	return err
}

// The generated answers are not used; this keeps their interfaces in view.
var (
	_ gen.GetSandboxResponseObject    = sandboxAnswer{}
	_ gen.ListSandboxesResponseObject = listAnswer{}
)
