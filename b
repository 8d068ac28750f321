[
  {
    "id": 0,
    "img_name": "",
    "split": "train",
    "width": 64,
    "height": 1,
    "position": [
      0.0,
      0.0,
      -3.0
    ],
    "rotation": [
      [
        1.0,
        0.0,
        0.0
      ],
      [
        0.0,
        1.0,
        0.0
      ],
      [
        0.0,
        0.0,
        1.0
      ]
    ],
    "fy": 0.8154329657554626,
    "fx": 0.8154329657554626,
    "cx": 32.0,
    "cy": 0.5,
    "camera_model": "pinhole"
  }
]
