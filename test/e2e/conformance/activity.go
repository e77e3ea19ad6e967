package conformance

import (
	"bufio"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/openapi/conform"
)

// testActivity: whoever may read a sandbox sees what was done in it, by which key, and may follow
// that.
func testActivity(t *testing.T, s *Service, id string) {
	const command = "echo seen by those who read"
	path := "/v1/sandboxes/" + id + "/activity"
	inside := ExecdThroughTheService(t, s.Inside(t, id, DaemonPort))
	inside.Want(t, command, "seen by those who read\n")
	is := func(e lifecycle.ActivityEntry) bool {
		return e.Kind == "command" && e.Text == command && e.Key == "server.api_key"
	}
	for _, key := range []string{AdminKey, ViewerKey} {
		client := s.As(t, key)
		contract := client.HTTP.Transport.(*conform.Transport)
		got, err := Decode[lifecycle.Activity](client.Send(t, http.MethodGet, path, ""))
		if err != nil || !slices.ContainsFunc(got.Entries, is) {
			t.Fatalf("the command is not among %+v, %v", got, err)
		}
		response, cancel := client.Open(t, path+"/watch")
		defer cancel()
		for lines := bufio.NewScanner(response.Body); ; {
			if !lines.Scan() {
				t.Fatalf("%s ends without the command: %v", response.Status, lines.Err())
			}
			data, ok := strings.CutPrefix(lines.Text(), "data: ")
			if !ok {
				continue
			}
			var entry lifecycle.ActivityEntry
			err := errors.Join(contract.CheckEvent("ActivityEntry", []byte(data)),
				json.Unmarshal([]byte(data), &entry))
			if err != nil {
				t.Fatal(err)
			}
			if is(entry) {
				break
			}
		}
	}
}
