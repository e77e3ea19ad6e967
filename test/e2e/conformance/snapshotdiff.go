package conformance

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/clients/go/lifecycle"
)

// testSnapshotDiff compares snapshots with the image and with one another, as lists and as
// archives.
func testSnapshotDiff(t *testing.T, admin, c *Client, before string) {
	created, err := Decode[lifecycle.CreatedSandbox](c.Send(t, http.MethodPost, "/v1/sandboxes", fmt.Sprintf(`{"snapshotId":%q,"timeout":600}`, before)))
	if err != nil {
		t.Fatal(err)
	}
	id := c.Await(t, created.ID, "Running").ID
	box := c.Enter(t, id)
	box.Want(t, "echo longer > /root/work/note; rm /root/work/link /bin/nslookup; mkdir /root/new; ln -s / /root/new/root", "")
	after := c.Snapshot(t, id, "").ID
	for _, tt := range []struct {
		query string
		want  []string
	}{
		{before + "/diff", []string{"added /etc/mark file 6", "added /root/work directory 0", "added /root/work/link symlink 4", "added /root/work/note file 5"}},
		{before + "/diff?to=" + after, []string{"added /root/new directory 0", "added /root/new/root symlink 1",
			"removed /root/work/link symlink 4", "modified /root/work/note file 7"}},
		{after + "/diff?to=" + before, []string{"removed /root/new directory 0", "added /root/work/link symlink 4", "modified /root/work/note file 5"}},
		{before + "/diff?to=" + before, nil},
	} {
		diff, err := Decode[lifecycle.SnapshotDiff](c.Send(t, http.MethodGet, "/v1/snapshots/"+tt.query, ""))
		var got []string
		for _, f := range diff.Items {
			if strings.HasPrefix(f.Path, "/root") || strings.HasPrefix(f.Path, "/etc") {
				got = append(got, fmt.Sprintf("%s %s %s %d", f.Kind, f.Path, f.Type, f.Size))
			}
		}
		if err != nil || diff.Truncated || !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, truncated %t, %v; want %q", tt.query, got, diff.Truncated, err, tt.want)
		}
	}
	first, err := Decode[lifecycle.SnapshotDiff](c.Send(t, http.MethodGet, "/v1/snapshots/"+before+"/diff?limit=1", ""))
	if err != nil || !first.Truncated || len(first.Items) != 1 {
		t.Errorf("a list of one file: %+v, %v", first, err)
	}
	archive := c.Send(t, http.MethodGet, "/v1/snapshots/"+before+"/diff?to="+after, "", "Accept", "application/x-tar")
	var names []string
	for entries := tar.NewReader(strings.NewReader(archive.Body)); ; {
		header, err := entries.Next()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Errorf("the archive: %v", err)
			}
			break
		}
		names = append(names, header.Name)
	}
	for _, want := range []string{"bin/", "bin/.wh.nslookup", "root/new/root", "root/work/.wh.link", "root/work/note"} {
		if !slices.Contains(names, want) {
			t.Errorf("the archive has %q, and not %s", names, want)
		}
	}
	if archive.Header.Get("Content-Type") != "application/x-tar" || slices.Contains(names, "etc/mark") {
		t.Errorf("the archive is %s with %q", archive.Header.Get("Content-Type"), names)
	}
	box.Want(t, "touch /root/.wh.odd", "")
	odd := "/v1/snapshots/" + c.Snapshot(t, id, "").ID + "/diff"
	WantProblem(t, c.Send(t, http.MethodGet, odd, "", "Accept", "application/x-tar"), 409, "CONFLICT", "root/.wh.odd")
	if listed := c.Send(t, http.MethodGet, odd, ""); !strings.Contains(listed.Body, "/root/.wh.odd") {
		t.Errorf("the list is %s", listed)
	}
	export := exportOf(strings.Split(odd, "/")[3])
	WantProblem(t, admin.Send(t, export.Method, export.Path, export.Body), 409, "CONFLICT", "root/.wh.odd")
	c.Delete(t, id)
}

// exportOf makes an image of a snapshot, which takes an administrator.
func exportOf(snapshot string) Operation {
	return Operation{"exportSnapshot", http.MethodPost, "/v1/snapshots/" + snapshot + "/export", fmt.Sprintf(`{"name":"sandbox/exported:%s"}`, snapshot)}
}

// testSnapshotExport makes an image of a user's snapshot and a sandbox of the image, and provokes
// every answer.
func testSnapshotExport(t *testing.T, s *Service, snapshot string) {
	o, user := exportOf(snapshot), s.As(t, userKey)
	image, err := Decode[lifecycle.StoredImage](s.Send(t, o.Method, o.Path, o.Body))
	name := "sandbox/exported:" + snapshot
	if err != nil || !slices.ContainsFunc(image.Names, func(n string) bool { return strings.HasSuffix(n, name) }) {
		t.Fatalf("export: %+v, %v", image, err)
	}
	r := user.Idle()
	r.Image.URI = name
	made := user.Running(t, r)
	user.Enter(t, made).Want(t, "cat /root/work/link /etc/mark; echo $GIVEN", "kept\nthere\n\n")
	user.Delete(t, made)
	user.Await(t, made, "Terminated")
	for key, words := range map[string]string{userKey: "takes the role admin", OtherKey: "takes the role admin", ViewerKey: "takes the role admin"} {
		WantProblem(t, s.As(t, key).Send(t, o.Method, o.Path, o.Body), 403, "FORBIDDEN", words)
	}
	WantProblem(t, s.As(t, "wrong").Send(t, o.Method, o.Path, o.Body), 401, "UNAUTHORIZED", KeyHeader)
	RefuseUnknownParameters(t, s, []Operation{o})
	AskTooOften(t, s, []Operation{o})
	for _, body := range []string{"{}", `{"name":""}`, `{"name":"UPPER"}`, `{"name":"a@sha256:` + strings.Repeat("0", 64) + `"}`} {
		WantProblem(t, s.Send(t, o.Method, o.Path, body), 400, "INVALID_REQUEST_BODY", "name")
	}
	WantProblem(t, s.Send(t, o.Method, o.Path, fmt.Sprintf(`{"name":%q}`, strings.Repeat("x", 1<<20))), 413, "REQUEST_TOO_LARGE", "body")
	none := exportOf(unknownSnapshot)
	WantProblem(t, s.Send(t, none.Method, none.Path, none.Body), 404, "SNAPSHOT_NOT_FOUND", unknownSnapshot)
	if got := s.Send(t, http.MethodDelete, "/v1/images/"+url.PathEscape(name), ""); got.Status != http.StatusNoContent {
		t.Errorf("remove the image: %s", got)
	}
}
