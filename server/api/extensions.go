package api

import (
	"bytes"
	"encoding/json"
	"net/http"

	gen "sandbox.internal/gen/lifecycle"
	"sandbox.internal/server/lifecycle"
)

// memberOf returns the bytes of one member of a valid JSON object as they were sent, nil when there is none. As in the validated
// value, names match exactly and the last of several members with one name counts.
func memberOf(object []byte, name string) []byte {
	var members map[string]json.RawMessage
	if json.Unmarshal(object, &members) != nil {
		return nil
	}
	return members[name]
}

// sandboxAnswer is the answer with one sandbox. It is not the generated one because that would rewrite the extensions' bytes: their
// spaces, their escapes.
type sandboxAnswer struct {
	sandbox lifecycle.Sandbox
	applied *string // the preference that was heeded
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

// listAnswer is the answer with a page of sandboxes.
type listAnswer struct {
	listing lifecycle.Listing
	page    lifecycle.Page
}

// VisitListSandboxesResponse implements the generated interface.
func (a listAnswer) VisitListSandboxesResponse(w http.ResponseWriter) error {
	var body bytes.Buffer
	body.WriteString(`{"items":[`)
	for i, sandbox := range a.listing.Items {
		if i > 0 {
			body.WriteByte(',')
		}
		if err := writeSandbox(&body, sandbox); err != nil {
			return err
		}
	}
	pagination, err := json.Marshal(toPagination(a.listing.Total, a.page))
	if err != nil {
		return err
	}
	body.WriteString(`],"pagination":`)
	body.Write(pagination)
	body.WriteString("}\n")
	return writeJSON(w, &body)
}

// writeSandbox writes a sandbox as JSON, and its extensions byte for byte.
func writeSandbox(body *bytes.Buffer, sandbox lifecycle.Sandbox) error {
	data, err := json.Marshal(toSandbox(sandbox))
	if err != nil {
		return err
	}
	if sandbox.Extensions == nil {
		body.Write(data)
		return nil
	}
	body.Write(bytes.TrimSuffix(data, []byte("}"))) // there are other members: the id
	body.WriteString(`,"extensions":`)
	body.Write(sandbox.Extensions)
	body.WriteByte('}')
	return nil
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
