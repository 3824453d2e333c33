module walpost.example/consumer

go 1.24.0

require (
	github.com/jackc/pgx/v5 v5.8.0
	github.com/twmb/franz-go v1.20.6
)

require (
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/klauspost/compress v1.18.2 // indirect
	github.com/pierrec/lz4/v4 v4.1.22 // indirect
	github.com/twmb/franz-go/pkg/kmsg v1.12.0 // indirect
	golang.org/x/text v0.29.0 // indirect
)
