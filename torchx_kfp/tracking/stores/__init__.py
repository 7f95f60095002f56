"""Where the files of a tracker are: a local directory, or any file system of fsspec."""
