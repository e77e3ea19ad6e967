package conformance

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/wait"
)

func testList(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	if got := s.Send(t, http.MethodGet, "/v1/sandboxes", ""); !strings.Contains(got.Body, `"items":[]`) {
		t.Errorf("a new service answers %s, want an empty array", got)
	}
	tags := []lifecycle.Metadata{
		{"team": "red", "name": "first"},
		{"team": "red", "a=b&c": "50% ü"},
		{"team": "blue"},
		{"team": "blue", "name": "first"},
		{},
	}
	var created []lifecycle.Sandbox
	for _, metadata := range tags {
		r := s.Idle()
		r.Metadata = metadata
		id := s.Create(t, r)
		created = append(created, s.Get(t, id))
	}
	if first, last := created[0].CreatedAt, created[len(created)-1].CreatedAt; last.Before(first) {
		t.Errorf("the first was created at %v, the last at %v", first, last)
	}
	newest := newestFirst(slices.Clone(created)...)
	for _, id := range newest {
		s.Await(t, id, "Running")
	}
	paused, ended := created[4].ID, created[3].ID
	s.Pause(t, paused)
	s.Delete(t, ended)
	s.Await(t, ended, "Terminated")

	// pick returns the ids of some of those created, in the order of the list.
	pick := func(places ...int) []string {
		return slices.DeleteFunc(slices.Clone(newest), func(id string) bool {
			return !slices.ContainsFunc(places, func(i int) bool { return created[i].ID == id })
		})
	}
	named := pick(0, 3)
	twice := url.QueryEscape(url.QueryEscape("a=b&c") + "=" + url.QueryEscape("50% ü"))
	for query, want := range map[string][]string{
		"":                                     newest,
		"state=Running":                        pick(0, 1, 2),
		"state=paused&state=TERMINATED":        pick(3, 4),
		"state=Failed":                         nil,
		"metadata=team%3Dred":                  pick(0, 1),
		"metadata=team%3Dred%26name%3Dfirst":   pick(0),
		"metadata=" + twice:                    pick(1),
		"metadata=team%3Dblue&state=Running":   pick(2),
		"metadata=team%3Dgreen":                nil,
		"metadata=name%3Dfirst&pageSize=1":     named[:1],
		"metadata=name%3Dfirst&page=2":         nil,
		"page=2&pageSize=2":                    newest[2:4],
		"page=3&pageSize=2":                    newest[4:],
		"page=4&pageSize=2":                    nil,
		"page=9223372036854775807&pageSize=50": nil,
	} {
		t.Run(query, func(t *testing.T) {
			if got := IDs(s.page(t, query).Items); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
	for query, want := range map[string]lifecycle.Pagination{
		"":           {Page: 1, PageSize: 20, TotalItems: 5, TotalPages: 1},
		"pageSize=5": {Page: 1, PageSize: 5, TotalItems: 5, TotalPages: 1},
		"pageSize=2": {Page: 1, PageSize: 2, TotalItems: 5, TotalPages: 3,
			HasNextPage: true},
		"pageSize=2&page=2": {Page: 2, PageSize: 2, TotalItems: 5, TotalPages: 3,
			HasNextPage: true},
		"pageSize=2&page=3":           {Page: 3, PageSize: 2, TotalItems: 5, TotalPages: 3},
		"pageSize=2&page=7":           {Page: 7, PageSize: 2, TotalItems: 5, TotalPages: 3},
		"pageSize=1000&state=Running": {Page: 1, PageSize: 1000, TotalItems: 3, TotalPages: 1},
		"state=Failed":                {Page: 1, PageSize: 20, TotalItems: 0, TotalPages: 0},
	} {
		t.Run(query, func(t *testing.T) {
			if got := s.page(t, query).Pagination; got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

// newestFirst returns ids in the order of a list. Those created in one moment, which may be as long
// as a second, are ordered by their ids.
func newestFirst(sandboxes ...lifecycle.Sandbox) []string {
	slices.SortFunc(sandboxes, func(a, b lifecycle.Sandbox) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), strings.Compare(a.ID, b.ID))
	})
	return IDs(sandboxes)
}

// page lists with a query as it goes over the wire.
func (c *Client) page(t *testing.T, query string) lifecycle.SandboxList {
	t.Helper()
	list, err := Decode[lifecycle.SandboxList](c.Send(t, "GET", "/v1/sandboxes?"+query, ""))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func testExpiry(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	r := s.Idle()
	r.Timeout = 60
	running, paused := s.Create(t, r), s.Create(t, r)
	s.Await(t, paused, "Running")
	s.Pause(t, paused)
	t.Parallel()
	var reasons []string
	for _, id := range []string{running, paused} {
		expiresAt := s.Get(t, id).ExpiresAt
		ended := s.AwaitWithin(t, id, "Terminated", time.Duration(r.Timeout)*time.Second+wait.Patience())
		reasons = append(reasons, ended.Status.Reason)
		// By the record, because others may have run between the expiry and this look.
		if late := ended.Status.LastTransitionAt.Sub(expiresAt); late < 0 || late > wait.Patience() {
			t.Errorf("terminated %v after its expiry", late)
		}
	}
	t.Run("row lifecycle/codes/EXPIRED", func(t *testing.T) {
		if want := []string{"EXPIRED", "EXPIRED"}; !slices.Equal(reasons, want) {
			t.Errorf("the reasons of the ends are %q", reasons)
		}
	})
	s.Gone(t, running)
	s.Gone(t, paused)
}
