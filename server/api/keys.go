package api

import (
	"context"
	"time"

	gen "sandbox.internal/gen/lifecycle"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/keys"
	"sandbox.internal/server/lifecycle"
)

// noStore keeps secrets out of caches.
const noStore = "no-store"

// KeyField is the field of the access log with the key that a request is about, whose own key is
// key_name.
const KeyField = "subject_key"

func (h *handlers) ListKeys(ctx context.Context, request gen.ListKeysRequestObject) (gen.ListKeysResponseObject, error) {
	if err := caller(ctx).CanAdminister(); err != nil {
		return nil, err
	}
	page := lifecycle.Page{Number: defaultPage, Size: defaultPageSize}
	if p := request.Params.Page; p != nil {
		page.Number = *p
	}
	if p := request.Params.PageSize; p != nil {
		page.Size = *p
	}
	found, total := h.keys.List(page)
	items := make([]gen.Key, len(found))
	for i, key := range found {
		items[i] = toKey(key)
	}
	return gen.ListKeys200JSONResponse{Body: gen.KeyList{Items: items, Pagination: toPagination(total, page)}}, nil
}

func (h *handlers) GetKey(ctx context.Context, request gen.GetKeyRequestObject) (gen.GetKeyResponseObject, error) {
	if err := caller(ctx).CanAdminister(); err != nil {
		return nil, err
	}
	key, err := h.keys.Get(request.KeyName)
	if err != nil {
		return nil, err
	}
	return gen.GetKey200JSONResponse{Body: toKey(key)}, nil
}

func (h *handlers) CreateKey(ctx context.Context, request gen.CreateKeyRequestObject) (gen.CreateKeyResponseObject, error) {
	if err := caller(ctx).CanAdminister(); err != nil {
		return nil, err
	}
	serve.LogField(ctx, KeyField, request.Body.Name)
	if err := checkExpiry(request.Body.ExpiresAt); err != nil {
		return nil, err
	}
	key, secret, err := h.keys.Create(ctx, fromCreateKeyRequest(*request.Body))
	if err != nil {
		return nil, err
	}
	return gen.CreateKey201JSONResponse{
		Body: gen.IssuedKey{Key: toKey(key), Secret: secret}, Headers: gen.CreateKey201ResponseHeaders{CacheControl: noStore},
	}, nil
}

func (h *handlers) RotateKey(ctx context.Context, request gen.RotateKeyRequestObject) (gen.RotateKeyResponseObject, error) {
	if err := caller(ctx).CanAdminister(); err != nil {
		return nil, err
	}
	serve.LogField(ctx, KeyField, request.KeyName)
	var asked gen.RotateKeyRequest
	if request.Body != nil {
		asked = *request.Body
	}
	if err := checkExpiry(asked.ExpiresAt); err != nil {
		return nil, err
	}
	grace := time.Duration(value(asked.GraceSeconds)) * time.Second
	key, secret, err := h.keys.Rotate(ctx, request.KeyName, grace, value(asked.ExpiresAt))
	if err != nil {
		return nil, err
	}
	return gen.RotateKey200JSONResponse{
		Body: gen.IssuedKey{Key: toKey(key), Secret: secret}, Headers: gen.RotateKey200ResponseHeaders{CacheControl: noStore},
	}, nil
}

func (h *handlers) DeleteKey(ctx context.Context, request gen.DeleteKeyRequestObject) (gen.DeleteKeyResponseObject, error) {
	if err := caller(ctx).CanAdminister(); err != nil {
		return nil, err
	}
	serve.LogField(ctx, KeyField, request.KeyName)
	if err := h.keys.Delete(ctx, request.KeyName); err != nil {
		return nil, err
	}
	return gen.DeleteKey204Response{}, nil
}

// checkExpiry refuses the zero time, which the domain takes for none.
func checkExpiry(given *time.Time) error {
	if given != nil && given.IsZero() {
		return lifecycle.Invalidf("expiresAt: must be in the future")
	}
	return nil
}

func fromCreateKeyRequest(r gen.CreateKeyRequest) keys.Spec {
	spec := keys.Spec{
		Name: r.Name, Role: lifecycle.Role(r.Role), ExpiresAt: value(r.ExpiresAt), TakeOver: value(r.TakeOver),
	}
	if l := r.Limits; l != nil {
		spec.Limits = lifecycle.KeyLimits{
			MaxSandboxes: value(l.MaxSandboxes), MaxTimeout: time.Duration(value(l.MaxTimeout)) * time.Second,
			DefaultCPU: value(l.DefaultCPU), DefaultMemory: value(l.DefaultMemory),
			MaxCPU: value(l.MaxCPU), MaxMemory: value(l.MaxMemory),
			TotalCPU: value(l.TotalCPU), TotalMemory: value(l.TotalMemory),
		}
	}
	if l := r.RateLimit; l != nil {
		spec.Rate = &lifecycle.KeyRate{PerSecond: l.RequestsPerSecond, Burst: value(l.Burst)}
	}
	return spec
}

func toKey(key lifecycle.APIKey) gen.Key {
	shown := gen.Key{
		Name: key.Name, Role: gen.KeyRole(key.Role), Source: gen.KeySource(key.Source), CreatedAt: present(key.CreatedAt),
		ExpiresAt: present(key.ExpiresAt), LastUsedAt: present(key.LastUsedAt), PreviousSecretExpiresAt: present(key.PreviousUntil),
	}
	if l := key.Limits; l != (lifecycle.KeyLimits{}) {
		shown.Limits = &gen.KeyLimits{
			MaxSandboxes: present(l.MaxSandboxes), MaxTimeout: present(int(l.MaxTimeout / time.Second)),
			DefaultCPU: present(l.DefaultCPU), DefaultMemory: present(l.DefaultMemory),
			MaxCPU: present(l.MaxCPU), MaxMemory: present(l.MaxMemory),
			TotalCPU: present(l.TotalCPU), TotalMemory: present(l.TotalMemory),
		}
	}
	if rate := key.Rate; rate != nil {
		shown.RateLimit = &gen.KeyRateLimit{RequestsPerSecond: rate.PerSecond, Burst: present(rate.Burst)}
	}
	return shown
}

// present returns a pointer to a value, nil for the zero value.
func present[T comparable](of T) *T {
	if of == *new(T) {
		return nil
	}
	return &of
}
